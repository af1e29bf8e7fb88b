//! The CUDA backend: one handle a device, calls on the caller's memory and stream.
mod call;
mod device;
mod error;
mod ptx;
mod raw;
mod resident;
mod slices;
mod stream;

pub use call::{Call, View};
pub use device::{DeviceFacts, device_count};
pub use error::{CudaError, DriverError, LoadFailure};
pub use resident::Resident;
pub use stream::Stream;

use crate::error::{Error, Reason, Result};
use crate::kernel::{self, Kernel};
use device::Device;
use std::sync::Arc;

/// One device: its primary context (the one that cudarc, candle and the runtime API use) and the loaded kernels. Clones
/// share everything; any thread may use it; no call changes the calling thread's current context.
#[derive(Clone, Debug)]
pub struct Gdn(Arc<Device>);

/// What a call ran, and why that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Why it, or why not the one before it.
    pub reason: Reason,
}

impl Gdn {
    /// Retains the primary context of device `ordinal` and loads every kernel: later calls load and allocate nothing.
    ///
    /// # Errors
    /// [`Error::Cuda`]: no driver, no such device, a device below compute capability 7.5, PTX that the driver refuses.
    pub fn new(ordinal: usize) -> Result<Self> {
        Ok(Self(Arc::new(Device::open(ordinal)?)))
    }

    /// What the device is.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.0.facts
    }

    /// Which kernel [`Gdn::run`] would take for `call`, on the host alone.
    ///
    /// # Errors
    /// Every error of [`Call::validate`]; [`Error::Refused`] where no kernel can run.
    pub fn plan(&self, call: &Call) -> Result<Launch> {
        self.plan_with(call, None)
    }

    fn plan_with(&self, call: &Call, forced: Option<Kernel>) -> Result<Launch> {
        call.validate()?;
        let (kernel, reason) = kernel::choose(self.0.facts.capability, &call.problem(), &call.pointers(), forced)?;
        Ok(Launch { kernel, reason })
    }

    /// Enqueues the recurrence on `stream` and returns at once. Without tokens and with one state for both nothing is
    /// launched.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Cuda`] where the launch fails. Nothing is enqueued then.
    ///
    /// # Safety
    /// Every pointer is device memory of this context that holds what its shape and strides describe, until the stream
    /// has passed the call, without conflicting access from another stream. out and the final state overlap no input,
    /// but the final state may be the initial one.
    pub unsafe fn run(&self, call: &Call, stream: Stream) -> Result<Launch> {
        // SAFETY: by the caller.
        unsafe { self.run_with(call, None, stream) }
    }

    /// [`Gdn::run`] by the kernel that is asked for.
    ///
    /// # Errors
    /// As [`Gdn::run`]; [`Error::Refused`] where that kernel cannot run.
    ///
    /// # Safety
    /// As [`Gdn::run`].
    pub unsafe fn run_by(&self, call: &Call, kernel: Kernel, stream: Stream) -> Result<Launch> {
        // SAFETY: by the caller.
        unsafe { self.run_with(call, Some(kernel), stream) }
    }

    unsafe fn run_with(&self, call: &Call, forced: Option<Kernel>, stream: Stream) -> Result<Launch> {
        let launch = self.plan_with(call, forced)?;
        let args = kernel::recurrent_args(&call.problem(), &call.pointers());
        let heads = &call.heads;
        // SAFETY: types: the entry takes `Args`. Lengths: `validate` has checked shapes and strides, the caller vouches
        // for the memory. Lifetime: the caller's, until the stream has passed the launch.
        unsafe { self.0.launch(launch.kernel.entry(heads), launch.kernel.grid(heads), &args, stream)? };
        Ok(launch)
    }

    /// Waits until `stream` has passed everything enqueued so far.
    ///
    /// # Errors
    /// [`Error::Cuda`] with whatever failed on the way.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        self.0.synchronize(stream).map_err(Error::from)
    }
}
