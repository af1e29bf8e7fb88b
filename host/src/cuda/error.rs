//! Errors of the CUDA backend.
#![forbid(unsafe_code)]

/// A driver call that failed: the code as the driver gave it, also where it is newer than every list of codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
#[non_exhaustive]
pub struct DriverError {
    /// The function of the driver.
    pub call: &'static str,
    /// What it returned.
    pub code: i32,
    /// The driver's name for that.
    pub name: String,
}

impl From<cust::error::CudaError> for DriverError {
    fn from(error: cust::error::CudaError) -> Self {
        Self { call: "a call of cust", code: error as i32, name: error.to_string() }
    }
}

/// What can go wrong between the library and the driver.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver, or it does not start.
    #[error("no usable NVIDIA driver ({source}); the CPU backend runs without one")]
    NoDriver {
        /// What `cuInit` said.
        source: DriverError,
    },
    /// The driver shows no device.
    #[error("the NVIDIA driver shows no device; CUDA_VISIBLE_DEVICES may hide them")]
    NoDevice,
    /// There are devices, but not this one.
    #[error("device {ordinal} does not exist: the driver shows {count}")]
    NoSuchDevice {
        /// The one asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device is too old for every kernel.
    #[error("{name} has compute capability {}.{}; the kernels need {}.{}", have / 10, have % 10, need / 10, need % 10)]
    Capability {
        /// The device.
        name: String,
        /// Its capability, times ten.
        have: u32,
        /// The least that a kernel needs.
        need: u32,
    },
    /// The driver refused the kernels.
    #[error(transparent)]
    Load(Box<LoadFailure>),
    /// The process has forked since the handle was made; CUDA does not survive that.
    #[error(
        "this handle was made in process {made_in}, which has forked; make a new one in process {here}, before any CUDA call of the parent"
    )]
    ForkedProcess {
        /// The process that made the handle.
        made_in: u32,
        /// The process that used it.
        here: u32,
    },
    /// In a debug build: a pointer to memory that the driver does not know.
    #[error("{argument}: {pointer:#x} is not device memory ({source})")]
    NotDeviceMemory {
        /// The argument.
        argument: &'static str,
        /// Its address.
        pointer: u64,
        /// What `cuPointerGetAttribute` said.
        source: DriverError,
    },
    /// In a debug build: a pointer to another device's memory.
    #[error("{argument}: {pointer:#x} is memory of device {device}, and this handle is device {ordinal}")]
    OtherDevice {
        /// The argument.
        argument: &'static str,
        /// Its address.
        pointer: u64,
        /// The device that it is on.
        device: i32,
        /// The handle's device.
        ordinal: i32,
    },
    /// A launch failed.
    #[error("launching {symbol} (grid {} x {}, {threads} threads, {shared_bytes} bytes of shared memory): {source}", grid[0], grid[1])]
    Launch {
        /// The PTX entry.
        symbol: &'static str,
        /// Blocks.
        grid: [u32; 2],
        /// Threads of a block.
        threads: u32,
        /// Dynamic shared memory of a block.
        shared_bytes: u32,
        /// What `cuLaunchKernel` said.
        source: DriverError,
    },
    /// A measurement under held multiprocessors outlasted the kernel that holds them.
    #[error("the multiprocessors were held for at most {} s, and the call took longer", most.as_secs())]
    HeldTooLong {
        /// The kernel's limit.
        most: std::time::Duration,
    },
    /// Any other driver call.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The driver refused the kernels.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{source} while loading the kernels (PTX {ptx_version} for {ptx_target}; this driver supports CUDA {}.{}): {cure}{}{log}",
    driver.0, driver.1, if log.is_empty() { "" } else { "\n" }
)]
#[non_exhaustive]
pub struct LoadFailure {
    /// The `.version` of the PTX.
    pub ptx_version: String,
    /// Its `.target`.
    pub ptx_target: String,
    /// The CUDA version that the driver supports.
    pub driver: (u32, u32),
    /// What to do.
    pub cure: &'static str,
    /// The driver's log of the compilation.
    pub log: String,
    /// What `cuModuleLoadDataEx` said.
    pub source: DriverError,
}
