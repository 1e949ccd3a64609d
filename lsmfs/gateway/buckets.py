"""Buckets, which are repositories: ListBuckets, HeadBucket, GetBucketLocation, and what becomes of CreateBucket.

A repository is made and deleted by the API and the command line, since S3 has no words for its default branch and its
storage. Clients that create a bucket before they upload are told that they own it already.
"""

from lsmfs.auth import Action, Resource
from lsmfs.gateway.answers import Answer, xml_answer, xml_date
from lsmfs.gateway.calls import Call
from lsmfs.gateway.errors import S3Error
from lsmfs.gateway.markup import element
from lsmfs.gateway.tokens import number_of, read_token, token_of

BUCKETS_MAX = 10_000  # S3's limit of one page
DEFAULT_REGION = "us-east-1"  # of which S3 says the location as an empty one


async def list_buckets(call: Call) -> Answer:
    query = call.request.query
    limit = number_of(query.get("max-buckets"), "max-buckets", BUCKETS_MAX, least=1)
    token = query.get("continuation-token")
    after, prefix = read_token(token) if token is not None else "", query.get("prefix", "")
    shown: list[str] = []
    last, token_after = "", ""
    async for record in call.lake.installation.records():
        if record.deleting or record.name <= after or not record.name.startswith(prefix):
            continue
        if not await call.allows(Action.READ_REPOSITORY, Resource(record.name)):
            continue
        if len(shown) == limit:
            token_after = element("ContinuationToken", token_of(last))
            break
        created = element("CreationDate", xml_date(record.created_us))
        region = element("BucketRegion", call.region)
        shown.append(f"<Bucket>{element('Name', record.name)}{created}{region}</Bucket>")
        last = record.name
    echoed = element("Prefix", prefix) if prefix else ""
    return xml_answer(
        "ListAllMyBucketsResult", owner_of(call), f"<Buckets>{''.join(shown)}</Buckets>", token_after, echoed
    )


def owner_of(call: Call) -> str:
    user = call.identity.user
    return f"<Owner>{element('ID', user)}{element('DisplayName', user)}</Owner>"


async def head_bucket(call: Call) -> Answer:
    await call.repository()
    return Answer(200, [(b"x-amz-bucket-region", call.region.encode())])


async def get_bucket_location(call: Call) -> Answer:
    await call.repository()
    return xml_answer("LocationConstraint", "" if call.region == DEFAULT_REGION else call.region)


async def create_bucket(call: Call) -> Answer:
    try:
        await call.repository()
    except S3Error as error:
        if error.code != "NoSuchBucket":
            raise
        message = f"Repositories are created by the API or by `lsmfs repo create {call.bucket[:80]}`, not through S3."
        raise S3Error("NotImplemented", message) from None
    raise S3Error("BucketAlreadyOwnedByYou", extra={"BucketName": call.bucket})


async def delete_bucket(call: Call) -> Answer:
    await call.repository()
    raise S3Error("NotImplemented", "Repositories are deleted by the API or by `lsmfs repo delete`, not through S3.")
