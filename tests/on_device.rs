//! An engine's side of a call on the GPU: its context, its tensors, its stream.
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer};
use host::cuda::{Call, Gates, Gdn, Scratch, State, Stream, View};
use host::inputs::Inputs;
use host::{Dtype, Kernel, Launch, PathChoice, Policy, Reason, Result, StateLayout, Strides};

use crate::checks::Output;

/// Makes the device's primary context current for this thread, as an engine has it.
///
/// # Panics
/// Without a device.
#[must_use]
pub fn engine_context() -> Context {
    let context = Context::new(Device::get_device(0).unwrap()).unwrap();
    CurrentContext::set_current(&context).unwrap();
    context
}

/// An engine's tensors on the device, each `offset` elements behind the start of its allocation.
#[derive(Debug)]
pub struct OnDevice<'a> {
    inputs: &'a Inputs,
    offset: usize,
    /// q, k, v, g, beta, state, out.
    buffers: [DeviceBuffer<f32>; 7],
}

impl<'a> OnDevice<'a> {
    /// Copies the inputs; the output is NaN, and so is everything in front of a tensor.
    ///
    /// # Panics
    /// As all of these, where the driver refuses.
    #[must_use]
    pub fn new(inputs: &'a Inputs, offset: usize) -> Self {
        let Output { out, .. } = Output::poisoned(inputs);
        let tensors = [&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta, &inputs.state, &out];
        let buffers = tensors.map(|tensor| {
            let padded: Vec<f32> = vec![f32::NAN; offset].into_iter().chain(tensor.iter().copied()).collect();
            DeviceBuffer::from_slice(&padded).unwrap()
        });
        CurrentContext::synchronize().unwrap();
        Self { inputs, offset, buffers }
    }

    /// The address of q, k, v, g, beta, state or out.
    #[must_use]
    pub fn pointer(&self, tensor: usize) -> u64 {
        self.buffers[tensor].as_device_ptr().as_raw() + 4 * self.offset as u64
    }

    /// The call without a state.
    pub fn stateless(&self) -> Call<'static> {
        let heads = self.inputs.heads;
        let view = |tensor, count, dim| View::new(self.pointer(tensor), Dtype::F32, Strides::dense(count, dim));
        let (keys, values) = (heads.num_k_heads, heads.num_v_heads);
        Call::new(
            heads,
            self.inputs.tokens,
            view(0, keys, 128),
            view(1, keys, 128),
            view(2, values, 128),
            Gates::Log { g: view(3, values, 1), beta: view(4, values, 1) },
            view(6, values, 128),
        )
        .scale(self.inputs.scale)
    }

    /// The call.
    pub fn call(&self) -> Call<'static> {
        self.stateless().state(self.state())
    }

    /// Where the state is.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(self.pointer(5), StateLayout::key_major(&self.inputs.heads), 1)
    }

    /// What q, k, v, g, beta, state or out holds.
    ///
    /// # Panics
    /// As [`OnDevice::new`].
    #[must_use]
    pub fn read(&self, tensor: usize) -> Vec<f32> {
        let buffer = &self.buffers[tensor];
        let mut values = vec![0.0; buffer.len()];
        buffer.copy_to(&mut values[..]).unwrap();
        values.split_off(self.offset)
    }

    /// Output and state.
    #[must_use]
    pub fn output(&self) -> Output {
        Output { out: self.read(6), state: self.read(5) }
    }

    /// Puts the state back and poisons the output.
    ///
    /// # Panics
    /// As [`OnDevice::new`].
    pub fn reset(&mut self) {
        let Output { out, .. } = Output::poisoned(self.inputs);
        for (tensor, values) in [(5, &self.inputs.state), (6, &out)] {
            let padded: Vec<f32> = vec![f32::NAN; self.offset].into_iter().chain(values.iter().copied()).collect();
            self.buffers[tensor].copy_from(&padded[..]).unwrap();
        }
        CurrentContext::synchronize().unwrap();
    }

    /// Enqueues the call under `gdn`'s policy; these tensors live until the stream is synchronised.
    ///
    /// # Errors
    /// Those of [`Gdn::prefill_in`].
    pub fn enqueue(&self, gdn: &Gdn, scratch: Scratch<'_>, stream: Stream) -> Result<Launch> {
        self.enqueue_call(gdn, &self.call(), scratch, stream)
    }

    /// [`OnDevice::enqueue`] of another call over these tensors.
    ///
    /// # Errors
    /// Those of [`Gdn::prefill_in`].
    pub fn enqueue_call(&self, gdn: &Gdn, call: &Call<'_>, scratch: Scratch<'_>, stream: Stream) -> Result<Launch> {
        // SAFETY: the pointers are those of the buffers, which live and are not used until the stream is synchronised;
        // borrowed scratch is the test's own.
        unsafe { gdn.prefill_in(call, scratch, stream) }
    }

    /// Runs `call` by `kernel` on `stream` and waits.
    ///
    /// # Errors
    /// Those of [`Gdn::prefill_by`].
    ///
    /// # Panics
    /// If another kernel runs.
    pub fn run(&self, gdn: &Gdn, call: &Call<'_>, kernel: Kernel, stream: Stream) -> Result<Output> {
        // SAFETY: the pointers are those of the buffers, which live and are not used until the stream is synchronised.
        let launch = unsafe { gdn.prefill_by(call, kernel, stream)? };
        assert_eq!((launch.kernel, launch.reason), (kernel, Reason::Forced));
        gdn.synchronize(stream)?;
        Ok(self.output())
    }
}

/// `gdn` by `kernel` alone.
#[must_use]
pub fn forced(gdn: &Gdn, kernel: Kernel) -> Gdn {
    gdn.with_policy(Policy::with_path(PathChoice::Forced(kernel)))
}
