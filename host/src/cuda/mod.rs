//! The CUDA backend: one handle a device, calls on the caller's memory and stream.
mod call;
mod device;
mod error;
mod hold;
mod pointers;
#[cfg(feature = "cli")]
mod probe;
mod programmatic;
mod ptx;
mod raw;
mod reruns;
mod resident;
mod resident_batch;
mod scratch;
mod slices;
mod states;
mod stream;
mod tensors;
mod timing;

pub use call::Call;
pub use device::{DeviceFacts, device_count};
pub use error::{CudaError, DriverError, LoadFailure};
pub use resident::Resident;
pub use resident_batch::{Part, ResidentBatch};
pub use scratch::{Scratch, Workspace};
pub use states::StatePool;
pub use stream::Stream;
pub use tensors::{Checkpoints, Decay, Gates, Indices, State, View};

use crate::dispatch::Launch;
use crate::error::{Error, Reason, Result};
use crate::kernel::Kernel;
use crate::policy::{PathChoice, Policy};
use crate::request::DECODE_TOKENS;
use crate::segments::Form;
use crate::steps::{self, Step};
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

    /// What [`Gdn::prefill`] would run for `call`, on the host alone.
    ///
    /// # Errors
    /// Every error of [`Call::validate`]; [`Error::Refused`] where no kernel can run.
    pub fn plan(&self, call: &Call<'_>) -> Result<Launch> {
        call.plan(&self.facts().card(), &self.policy)
    }

    /// Allocates the device's scratch for `call` now, so that a later call of that size allocates nothing; gives the bytes
    /// that are held.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Refused`] with [`Reason::ScratchAllocation`].
    pub fn reserve(&self, call: &Call<'_>) -> Result<usize> {
        let bytes = self.plan(call)?.scratch_bytes;
        let _current = self.device.current()?;
        self.device.scratch.reserve(bytes)
    }

    /// Device memory for [`Scratch::Workspace`], for calls of `call`'s size.
    ///
    /// # Errors
    /// As [`Gdn::plan`]; [`Error::Cuda`] where there is not so much.
    pub fn workspace(&self, call: &Call<'_>) -> Result<Workspace> {
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
    pub unsafe fn prefill(&self, call: &Call<'_>, stream: Stream) -> Result<Launch> {
        // SAFETY: by the caller.
        unsafe { self.prefill_in(call, Scratch::Device, stream) }
    }

    /// [`Gdn::prefill`] for sequences of up to [`DECODE_TOKENS`] tokens: one launch of the general kernel, which allocates
    /// nothing, so that it may be captured as it is. Slots are read from the device when the stream comes to the call, at each
    /// replay anew.
    ///
    /// # Errors
    /// As [`Gdn::prefill`]; [`Error::DecodeTokens`] for longer sequences, [`Error::Refused`] with [`Reason::Lengths`] for
    /// packed ones of different lengths.
    ///
    /// # Safety
    /// As [`Gdn::prefill`].
    pub unsafe fn decode(&self, call: &Call<'_>, stream: Stream) -> Result<Launch> {
        let request = call.request();
        request.validate()?;
        let tokens = request.sequences.longest();
        if tokens > DECODE_TOKENS {
            return Err(Error::DecodeTokens { tokens, most: DECODE_TOKENS });
        }
        if crate::decode::needs_table(&request) {
            return Err(Error::Refused { kernel: Kernel::Decode.name(), reason: Reason::Lengths });
        }
        // SAFETY: by the caller.
        unsafe { self.prefill_by(call, Kernel::Decode, stream) }
    }

    /// [`Gdn::prefill`] by the kernel that is asked for.
    ///
    /// # Errors
    /// As [`Gdn::prefill`]; [`Error::Refused`] where that kernel cannot run.
    ///
    /// # Safety
    /// As [`Gdn::prefill`].
    pub unsafe fn prefill_by(&self, call: &Call<'_>, kernel: Kernel, stream: Stream) -> Result<Launch> {
        let forced = self.forced(Some(kernel));
        // SAFETY: by the caller.
        unsafe { forced.prefill(call, stream) }
    }

    /// This device by `kernel` alone.
    fn forced(&self, kernel: Option<Kernel>) -> Self {
        match kernel {
            Some(kernel) => self.with_policy(Policy { path: PathChoice::Forced(kernel), ..self.policy.clone() }),
            None => self.clone(),
        }
    }

    /// [`Gdn::prefill`] with the caller's scratch.
    ///
    /// # Errors
    /// As [`Gdn::prefill`]; [`Error::Scratch`] where the scratch given is too small, [`Error::Misaligned`] where it is not on 16
    /// bytes.
    ///
    /// # Safety
    /// As [`Gdn::prefill`]; borrowed scratch is device memory of this context that nothing else uses until the stream has passed
    /// the call.
    pub unsafe fn prefill_in(&self, call: &Call<'_>, scratch: Scratch<'_>, stream: Stream) -> Result<Launch> {
        let launch = self.plan(call)?;
        let _current = self.device.current()?;
        if cfg!(debug_assertions) {
            pointers::require_here(&call.request(), self.device.ordinal, stream)?;
        }
        // SAFETY: by the caller.
        let done = unsafe { self.enqueue(call, &launch, scratch, stream) };
        match done {
            // Memory is short: what can run without scratch still runs, unless the policy has no such path.
            Err(Error::Refused { reason: reason @ Reason::ScratchAllocation { .. }, .. })
                if self.policy.path == PathChoice::Auto =>
            {
                let recurrent = self.with_policy(Policy { path: PathChoice::Recurrent, ..self.policy.clone() });
                // SAFETY: by the caller.
                let launch = unsafe { recurrent.prefill_in(call, Scratch::Device, stream)? };
                Ok(Launch { reason, ..launch })
            }
            done => done.map(|()| launch),
        }
    }

    /// # Safety
    /// As [`Gdn::prefill_in`]; the context is current.
    unsafe fn enqueue(&self, call: &Call<'_>, launch: &Launch, scratch: Scratch<'_>, stream: Stream) -> Result<()> {
        let need = launch.scratch_bytes;
        if need == 0 {
            // SAFETY: by the caller; no kernel is given scratch.
            return unsafe { self.enqueue_steps(call, launch, 0, stream) };
        }
        match scratch {
            Scratch::Device => {
                let taken = self.device.scratch.take(need, stream)?;
                // SAFETY: by the caller; the scratch is `need` bytes and this stream's until it is released.
                let done = unsafe { self.enqueue_steps(call, launch, taken.pointer, stream) };
                // Whatever was enqueued uses the scratch, so it is marked also where a later launch failed.
                taken.release()?;
                done
            }
            Scratch::Borrowed { pointer, bytes } => {
                require_scratch(pointer, bytes, need)?;
                // SAFETY: by the caller, who vouches for the scratch too.
                unsafe { self.enqueue_steps(call, launch, pointer, stream) }
            }
            Scratch::Workspace(workspace) => {
                require_scratch(workspace.memory.pointer, workspace.memory.bytes, need)?;
                // SAFETY: by the caller; the workspace is the caller's alone.
                unsafe { self.enqueue_steps(call, launch, workspace.memory.pointer, stream) }
            }
        }
    }

    /// # Safety
    /// As [`Gdn::prefill_in`]; `scratch` is as many bytes as the plan says.
    unsafe fn enqueue_steps(&self, call: &Call<'_>, launch: &Launch, scratch: u64, stream: Stream) -> Result<()> {
        let request = call.request();
        let tokens = request.sequences.total();
        let is_timed = self.policy.timing && tokens > 0 && request.sequences.count() == 1;
        let form = Form::of(launch.kernel).filter(|_| is_timed);
        let card = self.policy.passing(&self.facts().card());
        let mut timing = form.map(|form| Timing::start(stream, form.phases(&card))).transpose()?;
        let scratch = GlobalMut::new(scratch as *mut f32);
        steps::steps(&self.facts().card(), &request, launch, &self.policy, scratch, |step| {
            let phase = if let Step::Chunked(step) = &step { step.phase } else { timing::CONVERSION };
            // SAFETY: types: each entry takes its arguments. Lengths: `validate` has checked shapes and strides, the caller
            // vouches for the memory. Lifetime: the caller's, until the stream has passed the launch.
            unsafe {
                match step {
                    Step::Recurrent(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::Chunked(step) => {
                        self.device.launch_as(step.entry, step.grid, &step.args, stream, step.follows_early)
                    }
                    Step::Decode(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::Upload(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::Widen(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::Narrow(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::Copy(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                    Step::ClearPadding(step) => self.device.launch(step.entry, step.grid, &step.args, stream),
                }
            }?;
            timing.as_mut().map_or(Ok(()), |timing| Ok(timing.mark(phase)?))
        })?;
        if let Some(timing) = timing {
            eprintln!("{}", timing.report(tokens)?);
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
