"""A Google Cloud Storage bucket for tests: only a real one, named by LSMFS_TEST_GCS_URL.

No emulator serves, because obstore speaks Google's XML API and they speak the JSON one:
- gcp-storage-emulator 2026.7.19 (PyPI) answers HEAD of an object with 501 Not Implemented.
- fake-gcs-server 1.56.1 (Go) answers PUT of an object with 400 "invalid uploadType", and POST ?uploads the same.
- Google's own storage-testbench is in no package registry.
So without that address the suite is skipped for Google, also in CI.
"""

import os

from tests.servers.bucket import BucketAddress

ADDRESS = "LSMFS_TEST_GCS_URL"
MISSING = f"no {ADDRESS}, and no emulator has the XML API that obstore speaks"


def shared_gcs() -> BucketAddress:
    """The bucket from the environment, with GOOGLE_OAUTH_ACCESS_TOKEN or GOOGLE_APPLICATION_CREDENTIALS."""
    return BucketAddress(os.environ[ADDRESS], dict(os.environ))
