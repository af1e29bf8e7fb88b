//! The driver's symbols: a table of addresses, and one jump through it a name.
//!
//! The jumps are naked functions, since a jump must leave every argument where the caller put it.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Sets entry `index` of the table; `None` where the driver is too old to have the symbol.
pub fn define(index: usize, address: Option<*mut ()>) {
    TABLE[index].store(address.unwrap_or(missing as *mut ()), Ordering::Release);
}

/// Stands for every symbol while no driver is loaded.
extern "C" fn unavailable() -> i32 {
    3 // CUDA_ERROR_NOT_INITIALIZED
}

/// Stands for a symbol that the loaded driver lacks.
extern "C" fn missing() -> i32 {
    801 // CUDA_ERROR_NOT_SUPPORTED
}

/// Read by the jumps. An aligned pointer is read whole, so a call that races with [`define`] sees the old or the new one.
static TABLE: [AtomicPtr<()>; NAMES.len()] = [const { AtomicPtr::new(unavailable as *mut ()) }; NAMES.len()];

macro_rules! driver_symbols {
    ($($name:ident)+) => {
        /// Position of each symbol in the table.
        #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", not(target_vendor = "apple"))))]
        #[expect(non_camel_case_types, reason = "the driver's names")]
        enum Position { $($name),+ }

        /// The symbols' names, ended by a zero byte, in the table's order.
        #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", not(target_vendor = "apple"))))]
        pub const NAMES: &[&str] = &[$(concat!(stringify!($name), "\0")),+];

        /// No symbol is defined where there is no jump.
        #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", not(target_vendor = "apple")))))]
        pub const NAMES: &[&str] = &[];

        $(
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                std::arch::naked_asm!(
                    "jmp qword ptr [rip + {table} + {offset}]",
                    table = sym TABLE,
                    offset = const Position::$name as usize * size_of::<usize>(),
                )
            }

            // x16 is the register that the ABI leaves to jumps between a caller and its callee.
            #[cfg(all(target_arch = "aarch64", not(target_vendor = "apple")))]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                std::arch::naked_asm!(
                    "adrp x16, {table}",
                    "add x16, x16, :lo12:{table}",
                    "ldr x16, [x16, #{offset}]",
                    "br x16",
                    table = sym TABLE,
                    offset = const Position::$name as usize * size_of::<usize>(),
                )
            }
        )+
    };
}

// Every symbol that cust 0.3.2 refers to, and those that the host crate calls through `cust::sys`.
driver_symbols! {
    cuArray3DCreate_v2
    cuArray3DGetDescriptor_v2
    cuArrayDestroy
    cuCtxCreate_v2
    cuCtxDestroy_v2
    cuCtxGetApiVersion
    cuCtxGetCacheConfig
    cuCtxGetCurrent
    cuCtxGetDevice
    cuCtxGetFlags
    cuCtxGetLimit
    cuCtxGetSharedMemConfig
    cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2
    cuCtxPushCurrent_v2
    cuCtxSetCacheConfig
    cuCtxSetCurrent
    cuCtxSetLimit
    cuCtxSetSharedMemConfig
    cuCtxSynchronize
    cuDestroyExternalMemory
    cuDeviceGet
    cuDeviceGetAttribute
    cuDeviceGetCount
    cuDeviceGetName
    cuDevicePrimaryCtxRelease_v2
    cuDevicePrimaryCtxReset_v2
    cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxSetFlags_v2
    cuDeviceTotalMem_v2
    cuDriverGetVersion
    cuEventCreate
    cuEventDestroy_v2
    cuEventElapsedTime
    cuEventQuery
    cuEventRecord
    cuEventSynchronize
    cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute
    cuFuncSetAttribute
    cuFuncSetCacheConfig
    cuFuncSetSharedMemConfig
    cuGetErrorName
    cuGetErrorString
    cuGraphAddKernelNode
    cuGraphCreate
    cuGraphDebugDotPrint
    cuGraphDestroy
    cuGraphExecDestroy
    cuGraphGetEdges
    cuGraphGetNodes
    cuGraphInstantiateWithFlags
    cuGraphKernelNodeGetParams
    cuGraphLaunch
    cuGraphNodeGetType
    cuImportExternalMemory
    cuInit
    cuLaunchHostFunc
    cuLaunchKernel
    cuLaunchKernelEx
    cuLinkAddData_v2
    cuLinkComplete
    cuLinkCreate_v2
    cuLinkDestroy
    cuMemAdvise
    cuMemAllocAsync
    cuMemAllocHost_v2
    cuMemAllocManaged
    cuMemAlloc_v2
    cuMemFreeAsync
    cuMemFreeHost
    cuMemFree_v2
    cuMemGetInfo_v2
    cuMemPrefetchAsync
    cuMemcpy2D_v2
    cuMemcpyAtoH_v2
    cuMemcpyDtoDAsync_v2
    cuMemcpyDtoD_v2
    cuMemcpyDtoHAsync_v2
    cuMemcpyDtoH_v2
    cuMemcpyHtoA_v2
    cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2
    cuMemsetD16Async
    cuMemsetD16_v2
    cuMemsetD32Async
    cuMemsetD32_v2
    cuMemsetD8Async
    cuMemsetD8_v2
    cuModuleGetFunction
    cuModuleGetGlobal_v2
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxPotentialBlockSize
    cuPointerGetAttribute
    cuStreamBeginCapture_v2
    cuStreamCreate
    cuStreamCreateWithPriority
    cuStreamDestroy_v2
    cuStreamEndCapture
    cuStreamGetFlags
    cuStreamGetPriority
    cuStreamIsCapturing
    cuStreamQuery
    cuStreamSynchronize
    cuStreamWaitEvent
    cuSurfObjectCreate
    cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc
    cuTexObjectCreate
    cuTexObjectDestroy
    cuTexObjectGetResourceDesc
    cuTexObjectGetResourceViewDesc
}
