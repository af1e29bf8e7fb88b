//! A device's primary context, the kernels loaded into it, and launches.
use super::error::{CudaError, DriverError, LoadFailure};
use super::programmatic::{self, Extent};
use super::ptx;
use super::raw::{self, check};
use super::scratch::DeviceScratch;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::policy::Card;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use cuda_std::kernel::{Architecture, Arguments, Entry};
use cust::sys::{CUcontext, CUdevice, CUfunction, CUmodule};
use std::collections::HashMap;

/// What a device is, as far as a choice of kernel depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The driver's name for it.
    pub name: String,
    /// The CUDA version that the driver supports, major and minor.
    pub driver: (u32, u32),
    /// Compute capability, times ten.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The most shared memory that a block can ask for, in bytes.
    pub shared_bytes_optin: u32,
    /// Memory of the device, in bytes.
    pub memory_bytes: u64,
    /// The cards that the PTX file loaded on it is for: one for its compute capability alone, if there is one and the driver
    /// is new enough to read it.
    pub ptx: Architecture,
}

/// How many devices the driver shows.
///
/// # Errors
/// [`CudaError::NoDriver`].
pub fn device_count() -> Result<usize> {
    // SAFETY: the flags have to be 0.
    check("cuInit", unsafe { raw::cuInit(0) }).map_err(|source| match source.code {
        100 => CudaError::NoDevice,
        _ => CudaError::NoDriver { source },
    })?;
    let mut count = 0;
    // SAFETY: `count` is written.
    check("cuDeviceGetCount", unsafe { raw::cuDeviceGetCount(&raw mut count) }).map_err(CudaError::from)?;
    Ok(count as usize)
}

/// One device: its retained primary context and the loaded kernels. Nothing is loaded or allocated after `open`.
#[derive(Debug)]
pub(super) struct Device {
    /// Its number in the driver's list.
    pub ordinal: c_int,
    device: CUdevice,
    context: CUcontext,
    module: CUmodule,
    functions: HashMap<&'static str, Function>,
    pub facts: DeviceFacts,
    pub scratch: DeviceScratch,
    process: u32,
}

#[derive(Clone, Copy, Debug)]
struct Function(CUfunction);

// SAFETY: contexts, modules and functions are handles that any thread may use with the context current, which every
// method sees to.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks what it has to, and nothing here changes after `open`.
unsafe impl Sync for Device {}

impl DeviceFacts {
    /// What a choice of path depends on.
    #[must_use]
    pub fn card(&self) -> Card {
        let &Self { capability, multiprocessors, shared_bytes_optin, ptx, .. } = self;
        Card { capability, multiprocessors, shared_bytes_optin, ptx }
    }
}

impl Device {
    /// Retains the primary context of device `ordinal` and loads the kernels. The calling thread's current context stays
    /// as it was.
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = device_count()?;
        if count == 0 {
            return Err(CudaError::NoDevice.into());
        }
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count }.into());
        }
        let mut device = 0;
        // SAFETY: `device` is written; the ordinal is in range.
        check("cuDeviceGet", unsafe { raw::cuDeviceGet(&raw mut device, ordinal as c_int) })
            .map_err(CudaError::from)?;
        let (facts, ptx) = facts(device)?;
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` is written; released in `drop`.
        check("cuDevicePrimaryCtxRetain", unsafe { raw::cuDevicePrimaryCtxRetain(&raw mut context, device) })
            .map_err(CudaError::from)?;
        // From here on `drop` gives back what has been taken.
        let mut opened = Self {
            ordinal: ordinal as c_int,
            device,
            context,
            module: core::ptr::null_mut(),
            functions: HashMap::new(),
            facts,
            scratch: DeviceScratch::new(),
            process: std::process::id(),
        };
        opened.load(ptx)?;
        Ok(opened)
    }

    fn load(&mut self, ptx: ptx::File) -> Result<()> {
        let _current = Current::set(self.context).map_err(CudaError::from)?;
        (self.module, self.facts.ptx) = load_file(ptx, self.facts.driver)?;
        for entry in kernels_gpu::table::entries() {
            if !entry.architecture.fits_in(self.facts.ptx) {
                continue;
            }
            let function = function(self.module, entry.symbol).map_err(CudaError::from)?;
            set_shared_bytes(function, entry.shared_bytes).map_err(CudaError::from)?;
            self.functions.insert(entry.symbol, Function(function));
        }
        Ok(())
    }

    /// Makes the context current until the guard is dropped.
    ///
    /// # Errors
    /// [`CudaError::ForkedProcess`] in a child of the process that opened the device.
    pub fn current(&self) -> Result<Current, CudaError> {
        let here = std::process::id();
        if here != self.process {
            return Err(CudaError::ForkedProcess { made_in: self.process, here });
        }
        Ok(Current::set(self.context)?)
    }

    /// Enqueues `entry` on `stream`.
    ///
    /// # Safety
    /// The contract of the kernel's `run`, for device memory of this context and until the stream has passed the launch;
    /// `stream` is alive and of this context.
    pub unsafe fn launch<A: Arguments>(
        &self,
        entry: &Entry<A>,
        grid: [u32; 2],
        args: &A,
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: by the caller.
        unsafe { self.launch_as(entry, grid, args, stream, false) }
    }

    /// [`Device::launch`]; if it `follows_early`, before the launch in front of it has ended, for which its kernel waits.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn launch_as<A: Arguments>(
        &self,
        entry: &Entry<A>,
        grid: [u32; 2],
        args: &A,
        stream: Stream,
        follows_early: bool,
    ) -> Result<()> {
        let _current = self.current()?;
        let function = self
            .functions
            .get(entry.symbol)
            .ok_or(Error::Refused { kernel: entry.symbol, reason: crate::error::Reason::NotLoaded })?;
        let mut parameters = args.pointers();
        // SAFETY: types: `parameters` has the address of each argument in the entry's order, both from `Args`. Lengths:
        // by the caller. Lifetime: the driver copies the arguments before it returns.
        let launched = unsafe {
            if follows_early {
                let extent = Extent { grid, threads: entry.threads, shared_bytes: entry.shared_bytes };
                programmatic::launch(function.0, extent, &mut parameters, stream)
            } else {
                let code = raw::cuLaunchKernel(
                    function.0,
                    grid[0],
                    grid[1],
                    1,
                    entry.threads,
                    1,
                    1,
                    entry.shared_bytes,
                    stream.as_raw().cast(),
                    parameters.as_mut_ptr(),
                    core::ptr::null_mut(),
                );
                check("cuLaunchKernel", code)
            }
        };
        launched.map_err(|source| {
            let (symbol, threads, shared_bytes) = (entry.symbol, entry.threads, entry.shared_bytes);
            CudaError::Launch { symbol, grid, threads, shared_bytes, source }.into()
        })
    }

    /// Lets launches of `symbol` have so much dynamic shared memory, for a kernel whose entry does not say how much.
    pub fn allow_shared_bytes(&self, symbol: &str, bytes: u32) -> Result<(), DriverError> {
        match self.functions.get(symbol) {
            Some(function) => set_shared_bytes(function.0, bytes),
            None => Ok(()),
        }
    }

    /// The driver's handle of an entry, for launches with attributes.
    #[cfg(feature = "cli")]
    pub fn function(&self, symbol: &str) -> Option<CUfunction> {
        self.functions.get(symbol).map(|function| function.0)
    }

    /// Waits until `stream` has done everything enqueued so far, and reports what failed on the way.
    pub fn synchronize(&self, stream: Stream) -> Result<(), CudaError> {
        let _current = self.current()?;
        // SAFETY: the stream is alive, by whoever made it.
        Ok(check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(stream.as_raw().cast()) })?)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // In a forked child the handles mean nothing. Errors cannot be reported here, and at process exit the driver may
        // be gone already.
        if std::process::id() != self.process {
            return;
        }
        if let Ok(_current) = Current::set(self.context) {
            self.scratch.free();
            if !self.module.is_null() {
                // SAFETY: loaded in `load`, unloaded once.
                let _ = unsafe { raw::cuModuleUnload(self.module) };
            }
        }
        // SAFETY: retained once in `open`.
        let _ = unsafe { raw::cuDevicePrimaryCtxRelease(self.device) };
    }
}

/// Makes a context current for the thread; puts back the one before when dropped.
#[derive(Debug)]
pub(super) struct Current {
    before: CUcontext,
    changed: bool,
}

impl Current {
    fn set(context: CUcontext) -> Result<Self, DriverError> {
        let mut before = core::ptr::null_mut();
        // SAFETY: `before` is written, null where the thread has none.
        check("cuCtxGetCurrent", unsafe { raw::cuCtxGetCurrent(&raw mut before) })?;
        let changed = before != context;
        if changed {
            // SAFETY: the context is retained by its `Device`.
            check("cuCtxSetCurrent", unsafe { raw::cuCtxSetCurrent(context) })?;
        }
        Ok(Self { before, changed })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: it was this thread's current context, or null.
            let _ = unsafe { raw::cuCtxSetCurrent(self.before) };
        }
    }
}

/// What the device is, and the PTX file for it.
///
/// # Errors
/// [`CudaError::Capability`] where it is too old for every file.
fn facts(device: CUdevice) -> Result<(DeviceFacts, ptx::File), CudaError> {
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `value` is written.
        check("cuDeviceGetAttribute", unsafe { raw::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
        Ok::<u32, DriverError>(value as u32)
    };
    let mut name = [0u8; 128];
    // SAFETY: at most `name.len()` bytes are written, a NUL among them.
    check("cuDeviceGetName", unsafe {
        raw::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device)
    })?;
    let mut driver = 0;
    // SAFETY: `driver` is written.
    check("cuDriverGetVersion", unsafe { raw::cuDriverGetVersion(&raw mut driver) })?;
    let mut bytes = 0;
    // SAFETY: `bytes` is written.
    check("cuDeviceTotalMem", unsafe { raw::cuDeviceTotalMem(&raw mut bytes, device) })?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    let capability = attribute(raw::ATTRIBUTE_CAPABILITY_MAJOR)? * 10 + attribute(raw::ATTRIBUTE_CAPABILITY_MINOR)?;
    let Some(file) = ptx::File::for_capability(capability) else {
        return Err(CudaError::Capability { name, have: capability, need: ptx::MINIMUM_CAPABILITY });
    };
    let facts = DeviceFacts {
        name,
        driver: (driver as u32 / 1000, driver as u32 % 1000 / 10),
        capability,
        multiprocessors: attribute(raw::ATTRIBUTE_MULTIPROCESSORS)?,
        shared_bytes_optin: attribute(raw::ATTRIBUTE_SHARED_BYTES_OPTIN)?,
        memory_bytes: bytes as u64,
        ptx: file.architecture,
    };
    Ok((facts, file))
}

/// Compiles a file, or the one for drivers that are too old for it, into the current context. Gives what the file taken is
/// for as well.
fn load_file(file: ptx::File, driver: (u32, u32)) -> Result<(CUmodule, Architecture), CudaError> {
    match load_module(file.image(), driver) {
        Err(CudaError::Load(failure)) if let Some(older) = file.instead(failure.source.code) => {
            load_file(older, driver)
        }
        loaded => Ok((loaded?, file.architecture)),
    }
}

/// Compiles PTX into the current context.
fn load_module(ptx: &CStr, driver: (u32, u32)) -> Result<CUmodule, CudaError> {
    let mut log = vec![0u8; 8192];
    let mut options = [raw::JIT_ERROR_LOG_BUFFER, raw::JIT_ERROR_LOG_BUFFER_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut module = core::ptr::null_mut();
    // SAFETY: the image ends with a NUL; two options with two values, of which the first is a buffer as long as the second
    // says, alive through the call.
    let code = unsafe {
        raw::cuModuleLoadDataEx(
            &raw mut module,
            ptx.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    check("cuModuleLoadDataEx", code).map_err(|source| {
        let text = ptx.to_string_lossy();
        CudaError::Load(Box::new(LoadFailure {
            ptx_version: ptx::directive(&text, ".version"),
            ptx_target: ptx::directive(&text, ".target"),
            driver,
            cure: ptx::cure(source.code),
            log: CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().trim().to_owned(),
            source,
        }))
    })?;
    Ok(module)
}

fn function(module: CUmodule, symbol: &str) -> Result<CUfunction, DriverError> {
    let name = std::ffi::CString::new(symbol).expect("symbols have no NUL");
    let mut function = core::ptr::null_mut();
    // SAFETY: `function` is written; the name ends with a NUL.
    check("cuModuleGetFunction", unsafe { raw::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) })?;
    Ok(function)
}

/// Asks for dynamic shared memory once, at load: an attribute set per launch would be shared between threads.
fn set_shared_bytes(function: CUfunction, bytes: u32) -> Result<(), DriverError> {
    // SAFETY: a function of the current context.
    let code = unsafe { raw::cuFuncSetAttribute(function, raw::FUNCTION_MAX_DYNAMIC_SHARED_BYTES, bytes as c_int) };
    check("cuFuncSetAttribute", code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOO_NEW: &str = ".version 99.9\n.target sm_80\n.address_size 64\n\0";

    /// None where there is no device and none is required.
    fn device() -> Option<Device> {
        // Before the first CUDA call; opening the device says what is missing.
        let _ = libcuda_loader::load();
        match Device::open(0) {
            Ok(device) => Some(device),
            Err(error) if std::env::var_os("GDN_REQUIRE_GPU").is_some_and(|value| value == "1") => panic!("{error}"),
            Err(_) => {
                println!("skipped: no device (1 case)");
                None
            }
        }
    }

    #[test]
    fn a_broken_ptx_is_a_load_error_with_versions_and_a_cure() {
        let Some(device) = device() else { return };
        let _current = device.current().unwrap();
        let file = ptx::File { architecture: Architecture::From(80), text: TOO_NEW };
        let error = load_file(file, device.facts.driver).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("99.9") && text.contains("sm_80") && text.contains("driver"), "{text}");
    }

    #[test]
    fn a_driver_too_old_for_a_cards_own_file_gets_the_other() {
        let Some(device) = device() else { return };
        let _current = device.current().unwrap();
        let capability = device.facts.capability;
        let file = ptx::File { architecture: Architecture::Only(capability), text: TOO_NEW };
        let (module, loaded) = load_file(file, device.facts.driver).unwrap();
        assert!(matches!(loaded, Architecture::From(_)) && loaded.runs_on(capability), "{loaded:?}");
        for entry in kernels_gpu::table::entries() {
            let found = function(module, entry.symbol).is_ok();
            assert_eq!(found, entry.architecture.fits_in(loaded), "{}", entry.symbol);
        }
        // SAFETY: loaded above, unloaded once.
        check("cuModuleUnload", unsafe { raw::cuModuleUnload(module) }).unwrap();
    }

    #[test]
    fn what_is_loaded_is_what_the_card_is_for() {
        let Some(device) = device() else { return };
        let card = device.facts.card();
        for entry in kernels_gpu::table::entries() {
            let loaded = device.functions.contains_key(entry.symbol);
            assert_eq!(loaded, card.require(entry.architecture).is_ok(), "{}", entry.symbol);
        }
    }
}
