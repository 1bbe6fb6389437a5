"""Settings that torch shares across a process or a thread, and a GPU's driver among all users of the GPU.

Modes, precisions, threads, backends, hooks; device, stream, random states, limits, flags.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.utils import deterministic as torch_deterministic
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn.verification.guards.setting import GlobalSetting, attribute, cannot_be_put_back, differing_keys

_C: Any = torch._C
_TINY, _ONE = 5e-324, 1.0
RANDOM_STATE = GlobalSetting("torch's random state", torch.get_rng_state, torch.set_rng_state)  # of a CPU


def _quick_settings() -> Iterator[GlobalSetting]:
    yield from _SETTINGS
    yield from _flags()
    yield from (attribute(torch.backends.cudnn, name, "torch.backends.cudnn") for name in _CUDNN)
    products = torch.backends.cuda.matmul
    yield from (attribute(products, name, "torch.backends.cuda.matmul") for name in _PRODUCTS)
    if hasattr(torch.backends.cudnn.rnn, "fp32_precision"):
        yield from (attribute(owner, "fp32_precision", label) for label, owner in _precision_places())
    else:
        yield from (attribute(owner, "allow_tf32") for owner in (torch.backends.cuda.matmul, torch.backends.cudnn))


def _precision_places() -> Iterator[tuple[str, Any]]:
    backends = torch.backends
    yield "torch.backends", backends
    yield "torch.backends.cuda.matmul", backends.cuda.matmul
    for backend, kinds in (("cudnn", ("rnn", "conv")), ("mkldnn", ("matmul", "rnn", "conv"))):
        owner = getattr(backends, backend)
        yield f"torch.backends.{backend}", owner
        yield from ((f"torch.backends.{backend}.{kind}", getattr(owner, kind)) for kind in kinds)


def _flags() -> Iterator[GlobalSetting]:
    """Switches of torch's libraries, as far as this torch has them."""
    for name, getter, setter in _FLAGS:
        if hasattr(_C, getter) and hasattr(_C, setter):
            yield GlobalSetting(name, getattr(_C, getter), getattr(_C, setter))


def _matmul_precision() -> str | None:
    """None where it cannot be told: the newer form has been set otherwise."""
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.get_float32_matmul_precision()
    return None


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(old: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(old[0], warn_only=old[1])


def _default_device() -> str:
    """Empty where none was set: torch.get_default_device tells cpu then too."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return "" if context is None else str(context.device)


def _autocast() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return (
        *((torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))) for kind in kinds),
        torch.is_autocast_cache_enabled(),
    )


def _set_autocast(old: tuple[Any, ...]) -> None:
    for kind, (is_enabled, dtype) in zip(("cpu", "cuda"), old[:2], strict=True):
        torch.set_autocast_enabled(kind, is_enabled)
        torch.set_autocast_dtype(kind, getattr(torch, dtype.removeprefix("torch.")))
    torch.set_autocast_cache_enabled(old[2])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _mode_stacks() -> tuple[int, int]:
    """How many modes of functions and of operators are on."""
    return _C._len_torch_function_stack(), _C._len_torch_dispatch_stack()


def _pop_modes(old: tuple[int, int]) -> None:
    for _ in range(_C._len_torch_function_stack() - old[0]):
        _C._pop_torch_function_stack()
    for number in range(_C._len_torch_dispatch_stack() - 1, old[1] - 1, -1):
        mode = _C._get_dispatch_stack_at(number)
        if getattr(mode, "old_dispatch_mode_flags", None):
            TorchDispatchMode.__exit__(mode, None, None, None)  # torch counts itself inside of a mode until then
        else:
            _C._pop_torch_dispatch_stack(None)


def _saved_tensor_hooks() -> Any:
    """The innermost pair; empty where there is none."""
    return _C._autograd._top_saved_tensors_default_hooks(True) or ()


def _pop_saved_tensor_hooks(old: Any) -> None:
    while (top := _saved_tensor_hooks()) and top != old:
        _C._autograd._pop_saved_tensors_default_hooks()


def _stop_profiler(was_on: bool) -> None:
    if not was_on:
        _C._autograd._disable_profiler()


_HOOKS = (
    "_global_buffer_registration_hooks", "_global_module_registration_hooks", "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks",
    "_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs",
)  # fmt: skip


def _module_hooks() -> tuple[tuple[int, ...], ...]:
    """Keys of the hooks that all modules share."""
    return tuple(tuple(getattr(nn_module, name, ())) for name in _HOOKS)


def _remove_module_hooks(old: tuple[tuple[int, ...], ...]) -> None:
    for name, keys in zip(_HOOKS, old, strict=True):
        for key in set(getattr(nn_module, name, ())) - set(keys):
            del getattr(nn_module, name)[key]


def _dispatch_keys() -> tuple[int, int]:
    """What torch dispatches by in this thread, whatever the tensors, and what it leaves out: each bit is a key."""
    return _C._dispatch_tls_local_include_set().raw_repr(), _C._dispatch_tls_local_exclude_set().raw_repr()


def _set_dispatch_keys(old: tuple[int, int]) -> None:
    included, excluded = map(_C.DispatchKeySet.from_raw_repr, old)
    for name, key in _C.DispatchKey.__members__.items():
        with contextlib.suppress(RuntimeError):  # it is none that a thread can have
            if _C._dispatch_tls_is_dispatch_key_included(name) != included.has(key):
                _C._dispatch_tls_set_dispatch_key_included(name, included.has(key))
            if _C._dispatch_tls_is_dispatch_key_excluded(name) != excluded.has(key):
                _C._dispatch_tls_set_dispatch_key_excluded(name, excluded.has(key))


_guards: list[Any] = []  # an inference mode lasts as long as its guard
_SETTINGS = (
    GlobalSetting("default device", _default_device, lambda device: torch.set_default_device(device or None)),
    GlobalSetting(
        "modes of functions and operators",
        _mode_stacks,
        _pop_modes,
        tell=lambda before, after: f"{before[0]} and {before[1]} as before, got {after[0]} and {after[1]}",
    ),
    GlobalSetting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    GlobalSetting("torch's threads", torch.get_num_threads, torch.set_num_threads),
    # torch refuses the second where these threads have begun.
    GlobalSetting("torch's threads between operators", torch.get_num_interop_threads, torch.set_num_interop_threads),
    GlobalSetting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    GlobalSetting("inference mode", torch.is_inference_mode_enabled, lambda is_on: _guards.append(_C._InferenceMode(is_on))),
    GlobalSetting("autocast", _autocast, _set_autocast),
    GlobalSetting("anomaly mode", _anomaly, lambda old: torch.set_anomaly_enabled(*old)),
    GlobalSetting("hooks of saved tensors", _saved_tensor_hooks, _pop_saved_tensor_hooks),
    GlobalSetting("hooks of all modules", _module_hooks, _remove_module_hooks),
    GlobalSetting("autograd's profiler", _C._autograd._profiler_enabled, _stop_profiler),
    GlobalSetting("deterministic algorithms", _deterministic, _set_deterministic),
    attribute(torch_deterministic, "fill_uninitialized_memory"),
    GlobalSetting("flushing of denormals", lambda: _TINY * _ONE == 0, torch.set_flush_denormal),
    GlobalSetting("float32 matmul precision", _matmul_precision, torch.set_float32_matmul_precision),
    attribute(torch.backends.opt_einsum, "strategy", "torch.backends.opt_einsum"),
    GlobalSetting("fast path of attention", torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    GlobalSetting("dispatch keys of this thread", _dispatch_keys, _set_dispatch_keys),  # after what changes them too
)
_REDUCTION = "_allow_fp16_reduced_precision_reduction"
_CUDNN = ("enabled", "benchmark", "deterministic")
_PRODUCTS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
# Name, getter and setter of torch._C.
_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("torch.backends.mkldnn.enabled", "_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("torch.backends.mkldnn.deterministic", "_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("torch.backends.nnpack.enabled", "_get_nnpack_enabled", "_set_nnpack_enabled"),
    ("torch.backends.quantized.engine", "_get_qengine", "_set_qengine"),
    ("flash attention", "_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("memory-efficient attention", "_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("attention by products", "_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("attention by cuDNN", "_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("attention's 16-bit sums", "_get_math_sdp_allow_fp16_bf16_reduction", "_set_math_sdp_allow_fp16_bf16_reduction"),
    ("cuBLAS's float16 sums", "_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"),
    ("float16 sums on a CPU", f"_get_cpu{_REDUCTION}", f"_set_cpu{_REDUCTION}"),
    ("preferred BLAS", "_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    ("preferred linear algebra", "_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    ("multiprocessors kept free", "_get_sm_carveout_experimental", "_set_sm_carveout_experimental"),
    ("cuDNN's largest search", "_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
    ("autograd in several threads", "_is_multithreading_enabled", "_set_multithreading_enabled"),
    ("views replayed backward", "_is_view_replay_enabled", "_set_view_replay_enabled"),
    ("fallback of autograd", "_get_autograd_fallback_mode", "_set_autograd_fallback_mode"),
    ("warnings repeated always", "_get_warnAlways", "_set_warnAlways"),
    ("profiling of scripts", "_get_graph_executor_optimize", "_set_graph_executor_optimize"),
)
QUICK = tuple(_quick_settings())  # which take a few microseconds each to read

# CUlimit of cuda.h.
_CUDA_LIMITS = {
    "stack": 0, "printf": 1, "heap": 2, "depth of synchronisation": 3, "pending launches": 4, "fetches of the L2": 5,
    "persisting L2": 6,
}  # fmt: skip
CUDA_RANDOM_STATES = GlobalSetting("CUDA's random states", torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
_WAITING = 7  # CU_CTX_SCHED_MASK: how the host waits for the GPU


def quick_cuda_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take some microseconds each to read."""
    yield GlobalSetting("current CUDA device", torch.cuda.current_device, torch.cuda.set_device)
    yield GlobalSetting("current CUDA stream", torch.cuda.current_stream, torch.cuda.set_stream)
    yield GlobalSetting("CUDA's synchronisation debug mode", torch.cuda.get_sync_debug_mode, torch.cuda.set_sync_debug_mode)
    if hasattr(torch._C, "_cuda_isHistoryEnabled"):
        yield GlobalSetting("record of CUDA's allocations", torch._C._cuda_isHistoryEnabled, _record_allocations)
    if hasattr(torch._C, "_cuda_tunableop_is_enabled"):
        yield GlobalSetting("tuning of CUDA's products", torch.cuda.tunable.is_enabled, torch.cuda.tunable.enable)
    if (driver := _driver()) is not None:
        yield GlobalSetting(
            "CUDA's limits", partial(_cuda_limits, driver), partial(_set_cuda_limits, driver), tell=differing_keys
        )
        yield GlobalSetting("how the host waits for CUDA", partial(_waiting, driver), cannot_be_put_back)


def slow_cuda_settings() -> Iterator[GlobalSetting]:
    """Yields the settings that take longer to read."""
    yield GlobalSetting("settings of CUDA's allocator", _cuda_allocator, cannot_be_put_back)


def _record_allocations(is_on: bool) -> None:
    torch.cuda.memory._record_memory_history(enabled="all" if is_on else None)


@cache
def _driver() -> Any:
    """CUDA's driver, which torch has loaded already; None where it has another name."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _cuda_limits(driver: Any) -> dict[str, int]:
    """Limits of the current context, in bytes or counts, as far as the device has them."""
    limits, value = {}, ctypes.c_size_t()
    for name, number in _CUDA_LIMITS.items():
        if driver.cuCtxGetLimit(ctypes.byref(value), number) == 0:
            limits[name] = value.value
    return limits


def _set_cuda_limits(driver: Any, old: dict[str, int]) -> None:
    new = _cuda_limits(driver)
    for name, value in old.items():
        if new.get(name) != value and driver.cuCtxSetLimit(_CUDA_LIMITS[name], ctypes.c_size_t(value)):
            raise OSError(f"the limit of {name} cannot be set")


def _waiting(driver: Any) -> int | None:
    flags = ctypes.c_uint()
    return None if driver.cuCtxGetFlags(ctypes.byref(flags)) else flags.value & _WAITING


def _cuda_allocator() -> str | None:
    """Settings of torch's allocator as text; None where this torch does not report them."""
    settings = torch.cuda.memory._snapshot().get("allocator_settings")
    return None if settings is None else str(settings)
