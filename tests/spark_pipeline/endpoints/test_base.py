"""What a URL of an endpoint must look like."""

from __future__ import annotations

import pytest

from spark_pipeline.core.errors import OptionError
from spark_pipeline.endpoints.base import endpoint


@pytest.mark.parametrize("url", ["localhost:8090", "http://host", "", "pulsar://host:1"])
def test_an_address_of_no_endpoint(url: str) -> None:
    with pytest.raises(OptionError, match="begins with one of anabranch://, kafka://"):
        endpoint(url)
