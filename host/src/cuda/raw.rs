//! The driver calls that the library makes itself, with their codes as plain numbers.
//!
//! `cust` gives them as an enum that ends with CUDA 11.4: a newer code in it would be undefined behaviour. It links the
//! same library, so these are the same functions.
use super::error::DriverError;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use cust::sys::{CUcontext, CUdevice, CUevent, CUfunction, CUmodule, CUstream};

/// What the driver calls return.
pub type Code = c_int;
const SUCCESS: Code = 0;

unsafe extern "C" {
    pub fn cuInit(flags: c_uint) -> Code;
    pub fn cuDriverGetVersion(version: *mut c_int) -> Code;
    pub fn cuGetErrorName(error: Code, name: *mut *const c_char) -> Code;
    pub fn cuDeviceGetCount(count: *mut c_int) -> Code;
    pub fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> Code;
    pub fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> Code;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) -> Code;
    #[link_name = "cuDeviceTotalMem_v2"]
    pub fn cuDeviceTotalMem(bytes: *mut usize, device: CUdevice) -> Code;
    pub fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> Code;
    #[link_name = "cuDevicePrimaryCtxRelease_v2"]
    pub fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Code;
    pub fn cuCtxGetCurrent(context: *mut CUcontext) -> Code;
    pub fn cuCtxSetCurrent(context: CUcontext) -> Code;
    pub fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        num_options: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
    ) -> Code;
    pub fn cuModuleUnload(module: CUmodule) -> Code;
    pub fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> Code;
    pub fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> Code;
    pub fn cuStreamSynchronize(stream: CUstream) -> Code;
    pub fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int) -> Code;
    pub fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> Code;
    pub fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> Code;
    pub fn cuEventRecord(event: CUevent, stream: CUstream) -> Code;
    pub fn cuEventSynchronize(event: CUevent) -> Code;
    pub fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Code;
    #[link_name = "cuEventDestroy_v2"]
    pub fn cuEventDestroy(event: CUevent) -> Code;
    #[link_name = "cuMemAlloc_v2"]
    pub fn cuMemAlloc(pointer: *mut u64, bytes: usize) -> Code;
    pub fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, pointer: u64) -> Code;
    pub fn cuMemsetD32Async(pointer: u64, value: c_uint, count: usize, stream: CUstream) -> Code;
    #[link_name = "cuMemFree_v2"]
    pub fn cuMemFree(pointer: u64) -> Code;
    #[allow(clippy::too_many_arguments)]
    pub fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
}

/// `CUdevice_attribute`.
pub const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
pub const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
pub const ATTRIBUTE_SHARED_BYTES_OPTIN: c_int = 97;
/// `CUpointer_attribute`.
pub const POINTER_ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
/// `CUfunction_attribute`: dynamic shared memory above 48 KB has to be asked for.
pub const FUNCTION_MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
pub const FUNCTION_PREFERRED_SHARED_CARVEOUT: c_int = 9;
/// `CUevent_flags`: an event that only orders work costs less.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CUresult`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUjit_option`.
pub const JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub const JIT_ERROR_LOG_BUFFER_BYTES: c_uint = 6;

/// The call's result as an error that names it.
pub fn check(call: &'static str, code: Code) -> Result<(), DriverError> {
    if code == SUCCESS { Ok(()) } else { Err(DriverError { call, code, name: name_of(code) }) }
}

/// The driver's name of a code; codes it does not know, and all codes without a driver, have a description.
fn name_of(code: Code) -> String {
    let mut name: *const c_char = core::ptr::null();
    // SAFETY: `name` is written, or left null where the driver does not know the code; the string is the driver's own.
    unsafe {
        if cuGetErrorName(code, &raw mut name) == SUCCESS && !name.is_null() {
            return CStr::from_ptr(name).to_string_lossy().into_owned();
        }
    }
    if code == 3 { "CUDA_ERROR_NOT_INITIALIZED".to_owned() } else { "a code this driver has no name for".to_owned() }
}
