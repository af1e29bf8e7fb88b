//! A call over slices, carried out on the device: for tests, for the command line, for a first try in an engine.
use super::call::Call as DeviceCall;
use super::error::{CudaError, DriverError};
use super::tensors::{Checkpoints, Decay, Gates, Indices, State, View};
use super::{Gdn, Stream};
use crate::call::{self, Call, States};
use crate::dispatch::Launch;
use crate::dtype::{self, Slice, SliceMut};
use crate::error::Result;
use crate::heads::Heads;
use crate::kernel::Kernel;
use crate::layout::StateLayout;
use crate::request::Pool;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;

impl Gdn {
    /// Copies the inputs to the device, runs the recurrence there by `kernel` or the first choice, and copies the output
    /// and the states back. Strides are kept. Outputs are NaN on the device before, so that what a kernel does not write
    /// shows; elements of `out` and of the states that are outside their rows keep their values.
    ///
    /// # Errors
    /// As [`Gdn::prefill`], and whatever the copies say. `out` and the states are unchanged then.
    pub fn run_on_slices(&self, call: Call<'_>, kernel: Option<Kernel>) -> Result<Launch> {
        call.validate()?;
        let _current = self.device.current()?;
        run_on_slices(&self.forced(kernel), call)
    }
}

/// Numbers without padding, of which every pattern of bits is one.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for half::bf16 {}
impl Plain for half::f16 {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for i64 {}

fn bytes<T: Plain>(data: &[T]) -> &[u8] {
    // SAFETY: types: plain numbers have no padding; lengths: the slice's own; lifetime: the slice's.
    unsafe { core::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

fn bytes_mut<T: Plain>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bits is a number.
    unsafe { core::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

fn bytes_of<'a>(slice: Slice<'a>) -> &'a [u8] {
    match slice {
        Slice::F32(data) => bytes(data),
        Slice::Bf16(data) => bytes(data),
        Slice::F16(data) => bytes(data),
    }
}

/// What a call has on the device while it runs.
#[derive(Default)]
struct Uploads {
    /// Only read.
    inputs: Vec<DeviceBuffer<u8>>,
}

fn upload(data: &[u8]) -> Result<DeviceBuffer<u8>, CudaError> {
    Ok(DeviceBuffer::from_slice(data).map_err(DriverError::from)?)
}

impl Uploads {
    fn bytes(&mut self, data: &[u8]) -> Result<u64> {
        let buffer = upload(data)?;
        let pointer = buffer.as_device_ptr().as_raw();
        self.inputs.push(buffer);
        Ok(pointer)
    }

    fn view(&mut self, view: call::View<'_>) -> Result<View> {
        let pointer = self.bytes(bytes_of(view.data))?;
        Ok(View::new(pointer, view.data.dtype(), view.strides).batch_stride(view.batch_stride))
    }

    fn indices(&mut self, indices: dtype::Indices<'_>) -> Result<Indices> {
        let pointer = match indices {
            dtype::Indices::I32(data) => self.bytes(bytes(data)),
            dtype::Indices::U32(data) => self.bytes(bytes(data)),
            dtype::Indices::I64(data) => self.bytes(bytes(data)),
        }?;
        Ok(Indices::new(pointer, indices.dtype()))
    }

    fn gates(&mut self, gates: call::Gates<'_>) -> Result<Gates> {
        Ok(match gates {
            call::Gates::Log { g, beta } => Gates::Log { g: self.view(g)?, beta: self.view(beta)? },
            call::Gates::Linear { decay, beta } => Gates::Linear { decay: self.view(decay)?, beta: self.view(beta)? },
            call::Gates::Raw { a, b, decay, dt_bias, allow_neg_eigval } => Gates::Raw {
                a: self.view(a)?,
                b: self.view(b)?,
                decay: match decay {
                    call::Decay::ALog(data) => Decay::ALog(self.bytes(bytes(data))?),
                    call::Decay::NegExpALog(data) => Decay::NegExpALog(self.bytes(bytes(data))?),
                },
                dt_bias: self.bytes(bytes(dt_bias))?,
                allow_neg_eigval,
            },
        })
    }
}

/// States that the device writes.
struct Written<'a> {
    host: &'a mut [f32],
    device: DeviceBuffer<u8>,
    state: State,
}

impl<'a> Written<'a> {
    fn new(heads: &Heads, state: call::State<'a>) -> Result<Self> {
        let device = upload(bytes(state.data))?;
        let on_device = on_device(heads, &device, state.data, state.layout);
        Ok(Self { host: state.data, device, state: on_device })
    }
}

fn on_device(heads: &Heads, buffer: &DeviceBuffer<u8>, data: &[f32], layout: StateLayout) -> State {
    State::new(buffer.as_device_ptr().as_raw(), layout, Pool::of("state", heads, data, layout).slots)
}

fn run_on_slices(gdn: &Gdn, call: Call<'_>) -> Result<Launch> {
    let mut uploads = Uploads::default();
    let (heads, sequences) = (call.heads, call.sequences);
    let mut poisoned = bytes_of(call.out.data.as_slice()).to_vec();
    poison(&call, &mut poisoned);
    let out = upload(&poisoned)?;
    let dtype = call.out.data.as_slice().dtype();
    let out_view = View::new(out.as_device_ptr().as_raw(), dtype, call.out.strides).batch_stride(call.out.batch_stride);
    let [q, k, v] = [call.q, call.k, call.v].map(|view| uploads.view(view));
    let gates = uploads.gates(call.gates)?;
    let mut device =
        DeviceCall::new(heads, sequences, q?, k?, v?, gates, out_view).scale(call.scale).qk_norm(call.norm);
    let mut written = Vec::new();
    match call.states {
        States::InPlace(state) => {
            written.push(Written::new(&heads, state)?);
            device = device.state(written[0].state);
        }
        States::Apart { initial, last } => {
            if let Some(initial) = initial {
                let buffer = upload(bytes(initial.data))?;
                device = device.initial_state(on_device(&heads, &buffer, initial.data, initial.layout));
                uploads.inputs.push(buffer);
            }
            if let Some(last) = last {
                written.push(Written::new(&heads, last)?);
                device = device.final_state(written[0].state);
            }
        }
    }
    if let Some(indices) = call.indices {
        device = device.state_indices(uploads.indices(indices)?);
    }
    if let Some(indices) = call.output_indices {
        device = device.output_state_indices(uploads.indices(indices)?);
    }
    device = match call.checkpoints {
        Some(call::Checkpoints::PerToken(indices)) => {
            device.checkpoints(Checkpoints::PerToken(uploads.indices(indices)?))
        }
        Some(call::Checkpoints::Lanes(lanes)) => device.checkpoints(Checkpoints::Lanes(lanes)),
        None => device,
    };
    if let Some((interval, state)) = call.every {
        let kept = Written::new(&heads, state)?;
        device = device.checkpoint_every(interval, kept.state);
        written.push(kept);
    }

    let owned = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).map_err(DriverError::from);
    let owned = owned.map_err(CudaError::from)?;
    let stream = Stream::from(&owned);
    // Copies of few bytes return before they have arrived, and a non-blocking stream does not wait for them by itself.
    gdn.synchronize(Stream::LEGACY)?;
    // SAFETY: types: each buffer holds what its view says. Lengths: `validate` has checked each slice against its strides,
    // and each buffer is as long as its slice. Lifetime: the stream is synchronised before the buffers go.
    let launch = unsafe { gdn.prefill(&device, stream)? };
    gdn.synchronize(stream)?;

    download(&out, &mut poisoned)?;
    let mut states = Vec::new();
    for state in &written {
        let mut host = vec![0.0f32; state.host.len()];
        download(&state.device, bytes_mut(&mut host))?;
        states.push(host);
    }
    match call.out.data {
        SliceMut::F32(data) => bytes_mut(data).copy_from_slice(&poisoned),
        SliceMut::Bf16(data) => bytes_mut(data).copy_from_slice(&poisoned),
        SliceMut::F16(data) => bytes_mut(data).copy_from_slice(&poisoned),
    }
    written.into_iter().zip(states).for_each(|(state, host)| state.host.copy_from_slice(&host));
    Ok(launch)
}

fn download(buffer: &DeviceBuffer<u8>, to: &mut [u8]) -> Result<(), CudaError> {
    if !to.is_empty() {
        buffer.copy_to(to).map_err(DriverError::from)?;
    }
    Ok(())
}

/// Fills each row of the output with ones: NaN in every type.
fn poison(call: &Call<'_>, out: &mut [u8]) {
    let [batches, tokens] = call.sequences.axes();
    let element = call.out.data.as_slice().dtype().bytes();
    for batch in 0..batches {
        for token in 0..tokens {
            for head in 0..call.heads.num_v_heads {
                let strides = call.out.strides;
                let start = batch * call.out.batch_stride + token * strides.token + head * strides.head;
                out[start * element..][..call.heads.head_v_dim * element].fill(0xff);
            }
        }
    }
}
