//! Launches that may begin before the one in front of them on the stream has ended: their kernels wait for it themselves.
use super::error::DriverError;
use super::raw::{Code, check};
use super::stream::Stream;
use core::ffi::{c_int, c_uint, c_void};
use cust::sys::{CUfunction, CUstream};

/// `CUlaunchAttributeID`: a launch may begin before the one in front of it on the stream has ended.
const ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

/// `CUlaunchAttribute`: its value is a union of 64 bytes.
#[repr(C, align(8))]
struct LaunchAttribute {
    id: c_uint,
    padding: [u8; 4],
    value: [c_int; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: CUstream,
    attributes: *mut LaunchAttribute,
    attribute_count: c_uint,
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && size_of::<LaunchConfig>() == 56);

unsafe extern "C" {
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
}

/// The extent of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Blocks.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Enqueues such a launch.
///
/// # Safety
/// As [`super::device::Device::launch`], with `parameters` those of `function`; the context is current.
pub unsafe fn launch(
    function: CUfunction,
    extent: Extent,
    parameters: &mut [*mut c_void],
    stream: Stream,
) -> Result<(), DriverError> {
    let mut value = [0; 16];
    value[0] = 1;
    let mut attribute = LaunchAttribute { id: ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, padding: [0; 4], value };
    let config = LaunchConfig {
        grid: [extent.grid[0], extent.grid[1], 1],
        block: [extent.threads, 1, 1],
        shared_bytes: extent.shared_bytes,
        stream: stream.as_raw().cast(),
        attributes: &raw mut attribute,
        attribute_count: 1,
    };
    // SAFETY: types: both structs are laid out as the driver's. Lengths: one attribute. Lifetime: the driver copies all of
    // it before it returns; the rest by the caller.
    let code = unsafe { cuLaunchKernelEx(&raw const config, function, parameters.as_mut_ptr(), core::ptr::null_mut()) };
    check("cuLaunchKernelEx", code)
}
