"""Pages of lists: `amount` is -1 to 1000, by default 100; less than one means the most there can be."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

PAGE_DEFAULT = 100
PAGE_MAX = 1000

Amount = Annotated[int, Meta(ge=-1, le=PAGE_MAX)]
T = TypeVar("T")
S = TypeVar("S")


class PageQuery(Struct, frozen=True):
    prefix: str = ""
    after: str = ""
    amount: Amount = PAGE_DEFAULT


class Pagination(Struct, frozen=True):
    has_more: bool
    next_offset: str
    results: int
    max_per_page: int = PAGE_MAX


class Listed(Struct, Generic[T], frozen=True):
    pagination: Pagination
    results: list[T]


def limit_of(amount: int) -> int:
    return amount if amount > 0 else PAGE_MAX


def listed(results: list[T], next_offset: str | None) -> Listed[T]:
    """A page; `next_offset` is where the next one begins, None if there is none."""
    return Listed(Pagination(next_offset is not None, next_offset or "", len(results)), results)


async def taken(items: AsyncIterator[S], amount: int, name_of: Callable[[S], str], make: Callable[[S], T]) -> Listed[T]:
    """The first items of a longer list."""
    limit, results, last = limit_of(amount), list[T](), ""
    async for item in items:
        if len(results) == limit:
            return listed(results, last)
        results.append(make(item))
        last = name_of(item)
    return listed(results, None)


def no_page(kind: type[T]) -> Listed[T]:
    return listed(list[T](), None)


__all__ = [
    "PAGE_DEFAULT",
    "PAGE_MAX",
    "Amount",
    "Listed",
    "PageQuery",
    "Pagination",
    "limit_of",
    "listed",
    "no_page",
    "taken",
]
