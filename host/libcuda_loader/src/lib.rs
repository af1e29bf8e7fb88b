//! Lets one binary start with and without an NVIDIA driver, although `cust` links libcuda.
//!
//! The workspace's linker finds an empty archive in place of libcuda (.cargo/config.toml), and this crate defines the
//! symbols instead (symbols.rs): each is a jump through a table that [`load`] fills from the driver. Before that, and on
//! machines without a driver, every symbol returns `CUDA_ERROR_NOT_INITIALIZED`, so `cust::init` reports it as an error.
//!
//! # Use
//! Only in a program, never in a library: in a process that loads the real libcuda as well, these symbols would stand in
//! front of it. Name the crate where the program starts, and load before the first CUDA call:
//!
//! ```no_run
//! // No driver is no error here: cust::init will say NotInitialized.
//! let _ = libcuda_loader::load();
//! ```
//!
//! The unit tests of a library that calls `cust` are a program too, and link only what they name:
//! `#[cfg(test)] use libcuda_loader as _;` in its lib.rs.

mod symbols;

use std::fmt;
use std::sync::OnceLock;

use libloading::Library;

/// The driver's library, installed with the display driver and never with the CUDA toolkit.
#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";
#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";

/// Why no driver was loaded. CUDA calls return `CUDA_ERROR_NOT_INITIALIZED` then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The library is not there, or the system refused to load it; the text is the system's.
    NoDriver(String),
    /// There are no jumps for this processor or system, so that CUDA symbols are left to the linker.
    Unsupported,
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(reason) => write!(formatter, "no NVIDIA driver: {reason}"),
            Self::Unsupported => write!(formatter, "opening libcuda at run time is not supported on this machine"),
        }
    }
}

impl std::error::Error for LoadError {}

/// Opens the driver's library and points the symbols at it. The first call does the work, in whichever thread; every
/// other call returns its result. No CUDA function is called: `cuInit` stays with the caller.
pub fn load() -> Result<(), LoadError> {
    static RESULT: OnceLock<Result<(), LoadError>> = OnceLock::new();
    RESULT.get_or_init(open).clone()
}

fn open() -> Result<(), LoadError> {
    if symbols::NAMES.is_empty() {
        return Err(LoadError::Unsupported);
    }
    // SAFETY: the driver's library has no initialisation that a caller must order.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| LoadError::NoDriver(error.to_string()))?;
    for (index, name) in symbols::NAMES.iter().enumerate() {
        // SAFETY: only the address is taken here. Its callers go through cust's declarations, which are the driver's.
        let address = unsafe { library.get::<*mut ()>(name.as_bytes()) }.map(|symbol| *symbol);
        symbols::define(index, address.ok());
    }
    // The table points into it for as long as the process lives.
    std::mem::forget(library);
    Ok(())
}
