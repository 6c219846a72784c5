"""Why a head is accepted as seldom as it is: measured variants of how it may have been meant."""

from peagle_trt.diagnose.findings import Finding, explain
from peagle_trt.diagnose.measure import Diagnosis, DiagnosisRequest, diagnose
from peagle_trt.diagnose.variants import Variant, list_variants
from peagle_trt.diagnose.walk import Acceptance

__all__ = [
    "Acceptance",
    "Diagnosis",
    "DiagnosisRequest",
    "Finding",
    "Variant",
    "diagnose",
    "explain",
    "list_variants",
]
