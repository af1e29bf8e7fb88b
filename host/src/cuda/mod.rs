//! The CUDA backend: one handle a device, calls on the caller's memory and stream.
mod call;
mod device;
mod error;
mod hold;
#[cfg(feature = "cli")]
mod probe;
mod ptx;
mod raw;
mod reruns;
mod resident;
mod scratch;
mod slices;
mod stream;
mod timing;

pub use call::{Call, View};
pub use device::{DeviceFacts, device_count};
pub use error::{CudaError, DriverError, LoadFailure};
pub use resident::Resident;
pub use scratch::{Scratch, Workspace};
pub use stream::Stream;

use crate::dispatch::{self, Launch};
use crate::error::{Error, Reason, Result};
use crate::kernel::{self, Kernel, Pointers, Problem};
use crate::policy::{PathChoice, Policy};
use crate::segments::{self, Form};
use cuda_std::GlobalMut;
use device::Device;
use scratch::Memory;
use std::sync::Arc;
use timing::Timing;

/// One device: its primary context (the one that cudarc, candle and the runtime API use), the loaded kernels and the scratch,
/// under a policy. Clones share all of it; any thread may use it; no call changes the calling thread's current context.
#[derive(Clone, Debug)]
pub struct Gdn {
    device: Arc<Device>,
    policy: Policy,
}

impl Gdn {
    /// Retains the primary context of device `ordinal` and loads every kernel, so that later calls load nothing, under
    /// [`Policy::default`].
    ///
    /// # Errors
    /// [`Error::Cuda`]: no driver, no such device, a device below compute capability 7.5, PTX that the driver refuses.
    pub fn new(ordinal: usize) -> Result<Self> {
        Ok(Self { device: Arc::new(Device::open(ordinal)?), policy: Policy::default() })
    }

    /// The same kernels and scratch under another policy.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self { device: Arc::clone(&self.device), policy }
    }

    /// What the device is.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.device.facts
    }

    /// What [`Gdn::run`] would run for `call`, on the host alone.
    ///
    /// # Errors
    /// Every error of [`Call::validate`]; [`Error::Refused`] where no kernel can run.
    pub fn plan(&self, call: &Call) -> Result<Launch> {
        call.validate()?;
        dispatch::choose(&self.facts().card(), &call.problem(), &call.pointers(), &self.policy)
    }

    /// Allocates the device's scratch for `call` now, so that a later call of that size allocates nothing; gives the bytes
    /// that are held.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Refused`] with [`Reason::ScratchAllocation`].
    pub fn reserve(&self, call: &Call) -> Result<usize> {
        let bytes = self.plan(call)?.scratch_bytes;
        let _current = self.device.current()?;
        self.device.scratch.reserve(bytes)
    }

    /// Device memory for [`Scratch::Workspace`], for calls of `call`'s size.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Cuda`] where there is not so much.
    pub fn workspace(&self, call: &Call) -> Result<Workspace> {
        let bytes = self.plan(call)?.scratch_bytes;
        let _current = self.device.current()?;
        let memory = Memory::allocate(bytes).map_err(CudaError::from)?;
        Ok(Workspace { memory, device: Arc::clone(&self.device) })
    }

    /// Enqueues the recurrence on `stream` and returns at once. Only a call that needs more scratch than the device holds
    /// allocates or waits.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Cuda`] where a launch fails.
    ///
    /// # Safety
    /// Every pointer is device memory of this context that holds what its shape and strides describe, until the stream
    /// has passed the call, without conflicting access from another stream. out and the final state overlap no input,
    /// but the final state may be the initial one.
    pub unsafe fn run(&self, call: &Call, stream: Stream) -> Result<Launch> {
        // SAFETY: by the caller.
        unsafe { self.run_in(call, Scratch::Device, stream) }
    }

    /// [`Gdn::run`] by the kernel that is asked for.
    ///
    /// # Errors
    /// As [`Gdn::run`]; [`Error::Refused`] where that kernel cannot run.
    ///
    /// # Safety
    /// As [`Gdn::run`].
    pub unsafe fn run_by(&self, call: &Call, kernel: Kernel, stream: Stream) -> Result<Launch> {
        let forced = self.forced(Some(kernel));
        // SAFETY: by the caller.
        unsafe { forced.run(call, stream) }
    }

    /// This device by `kernel` alone.
    fn forced(&self, kernel: Option<Kernel>) -> Self {
        match kernel {
            Some(kernel) => self.with_policy(Policy { path: PathChoice::Forced(kernel), ..self.policy.clone() }),
            None => self.clone(),
        }
    }

    /// [`Gdn::run`] with the caller's scratch.
    ///
    /// # Errors
    /// As [`Gdn::run`]; [`Error::Scratch`] where the scratch given is too small, [`Error::Misaligned`] where it is not on 16
    /// bytes.
    ///
    /// # Safety
    /// As [`Gdn::run`]; borrowed scratch is device memory of this context that nothing else uses until the stream has passed
    /// the call.
    pub unsafe fn run_in(&self, call: &Call, scratch: Scratch<'_>, stream: Stream) -> Result<Launch> {
        let launch = self.plan(call)?;
        let _current = self.device.current()?;
        // SAFETY: by the caller.
        let done = unsafe { self.enqueue(call, &launch, scratch, stream) };
        match done {
            // Memory is short: what can run without scratch still runs, unless the policy has no such path.
            Err(Error::Refused { reason: reason @ Reason::ScratchAllocation { .. }, .. })
                if self.policy.path == PathChoice::Auto =>
            {
                let recurrent = self.with_policy(Policy { path: PathChoice::Recurrent, ..self.policy.clone() });
                // SAFETY: by the caller.
                let launch = unsafe { recurrent.run_in(call, Scratch::Device, stream)? };
                Ok(Launch { reason, ..launch })
            }
            done => done.map(|()| launch),
        }
    }

    /// # Safety
    /// As [`Gdn::run_in`]; the context is current.
    unsafe fn enqueue(&self, call: &Call, launch: &Launch, scratch: Scratch<'_>, stream: Stream) -> Result<()> {
        let (problem, pointers) = (call.problem(), call.pointers());
        let Some(form) = Form::of(launch.kernel) else {
            let recurrent = kernel::recurrent_launch(launch.kernel, &problem, &pointers).expect("not chunked");
            // SAFETY: types: the entry takes these arguments. Lengths: `validate` has checked shapes and strides, the
            // caller vouches for the memory. Lifetime: the caller's, until the stream has passed the launch.
            return unsafe { self.device.launch(recurrent.entry, recurrent.grid, &recurrent.args, stream) };
        };
        let need = launch.scratch_bytes;
        match scratch {
            Scratch::Device => {
                let taken = self.device.scratch.take(need, stream)?;
                // SAFETY: as above; the scratch is `need` bytes and this stream's until it is released.
                let done = unsafe { self.enqueue_chunked(form, &problem, &pointers, taken.pointer, stream) };
                // Whatever was enqueued uses the scratch, so it is marked also where a later launch failed.
                taken.release()?;
                done
            }
            Scratch::Borrowed { pointer, bytes } => {
                require_scratch(pointer, bytes, need)?;
                // SAFETY: as above; the caller vouches for the scratch.
                unsafe { self.enqueue_chunked(form, &problem, &pointers, pointer, stream) }
            }
            Scratch::Workspace(workspace) => {
                require_scratch(workspace.memory.pointer, workspace.memory.bytes, need)?;
                // SAFETY: as above; the workspace is the caller's alone.
                unsafe { self.enqueue_chunked(form, &problem, &pointers, workspace.memory.pointer, stream) }
            }
        }
    }

    /// # Safety
    /// As [`Gdn::run_in`]; `scratch` is as many bytes as the plan says.
    unsafe fn enqueue_chunked(
        &self,
        form: Form,
        problem: &Problem,
        pointers: &Pointers,
        scratch: u64,
        stream: Stream,
    ) -> Result<()> {
        let segments = dispatch::cut(form, problem, pointers, self.policy.max_scratch_bytes)
            .map_err(|reason| Error::Refused { kernel: form.kernel().name(), reason })?;
        let timed = self.policy.timing && problem.tokens > 0;
        let mut timing = if timed { Some(Timing::start(stream, form.phases())?) } else { None };
        let card = self.device.facts.card();
        for launch in segments::launches(&card, problem, pointers, segments, GlobalMut::new(scratch as *mut f32)) {
            // SAFETY: types: the entry takes these arguments. Lengths and lifetime: by the caller.
            unsafe { self.device.launch(launch.entry, launch.grid, &launch.args, stream)? };
            timing.as_mut().map_or(Ok(()), Timing::mark)?;
        }
        if let Some(timing) = timing {
            eprintln!("{}", timing.report(problem.tokens)?);
        }
        Ok(())
    }

    /// Fills `floats` f32 at `pointer` with NaN on `stream`. The context is current.
    ///
    /// # Safety
    /// They are device memory of this context until the stream has passed the call.
    unsafe fn poison(&self, pointer: u64, floats: usize, stream: Stream) -> Result<()> {
        if floats == 0 {
            return Ok(());
        }
        // SAFETY: by the caller.
        let code = unsafe { raw::cuMemsetD32Async(pointer, f32::NAN.to_bits(), floats, stream.as_raw().cast()) };
        Ok(raw::check("cuMemsetD32Async", code).map_err(CudaError::from)?)
    }

    /// Waits until `stream` has passed everything enqueued so far.
    ///
    /// # Errors
    /// [`Error::Cuda`] with whatever failed on the way.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        self.device.synchronize(stream).map_err(Error::from)
    }
}

/// That borrowed scratch is large enough and on 16 bytes.
fn require_scratch(pointer: u64, have: usize, need: usize) -> Result<()> {
    if have < need {
        return Err(Error::Scratch { need, have, capturing: false });
    }
    if !pointer.is_multiple_of(16) {
        return Err(Error::Misaligned { argument: "scratch", address: pointer, required: 16 });
    }
    Ok(())
}
