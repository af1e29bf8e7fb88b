//! A call over slices, carried out on the device: for tests, for the command line, for a first try in an engine.
use super::call::{Call as DeviceCall, View as DeviceView};
use super::error::{CudaError, DriverError};
use super::{Gdn, Stream};
use crate::call::{Call, Gates, View};
use crate::dispatch::Launch;
use crate::error::Result;
use crate::kernel::Kernel;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;

impl Gdn {
    /// Copies the inputs to the device, runs the recurrence there by `kernel` or the first choice, and copies the output
    /// and the state back. Strides are kept. Outputs are NaN on the device before, so that what a kernel does not write
    /// shows; elements of `out` and of the state that are outside their rows keep their values.
    ///
    /// # Errors
    /// As [`Gdn::run`], and whatever the copies say. `out` and the state are unchanged then.
    pub fn run_on_slices(&self, mut call: Call<'_>, kernel: Option<Kernel>) -> Result<Launch> {
        call.validate()?;
        let _current = self.device.current()?;
        run_on_slices(&self.forced(kernel), &mut call)
    }
}

fn upload(slice: &[f32]) -> Result<DeviceBuffer<f32>, CudaError> {
    Ok(DeviceBuffer::from_slice(slice).map_err(DriverError::from)?)
}

fn run_on_slices(gdn: &Gdn, call: &mut Call<'_>) -> Result<Launch> {
    let Gates::Log { g, beta } = call.gates;
    let buffers = [call.q, call.k, call.v, g, beta].map(|view| upload(view.data).map(|buffer| (buffer, view)));
    let [q, k, v, g, beta] = buffers;
    let (q, k, v, g, beta) = (q?, k?, v?, g?, beta?);
    let view =
        |(buffer, view): &(DeviceBuffer<f32>, View<'_>)| DeviceView::new(buffer.as_device_ptr().as_raw(), view.strides);

    let mut poisoned = call.out.data.to_vec();
    for_each_row(call, |row| poisoned[row].fill(f32::NAN));
    let out = upload(&poisoned)?;
    let state = match &call.state {
        Some(state) => Some((upload(state.data)?, state.layout)),
        None => None,
    };

    let out_view = DeviceView::new(out.as_device_ptr().as_raw(), call.out.strides);
    let mut on_device =
        DeviceCall::new(call.heads, call.tokens, view(&q), view(&k), view(&v), view(&g), view(&beta), out_view)
            .scale(call.scale);
    if let Some((state, layout)) = &state {
        on_device = on_device.state(state.as_device_ptr().as_raw()).state_layout(*layout);
    }
    let owned = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).map_err(DriverError::from);
    let owned = owned.map_err(CudaError::from)?;
    let stream = Stream::from(&owned);
    // Copies of few bytes return before they have arrived, and a non-blocking stream does not wait for them by itself.
    gdn.synchronize(Stream::LEGACY)?;
    // SAFETY: types: f32 buffers. Lengths: `validate` has checked each slice against its strides, and each buffer is as
    // long as its slice. Lifetime: the stream is synchronised before the buffers go.
    let launch = unsafe { gdn.run(&on_device, stream)? };
    gdn.synchronize(stream)?;

    let mut final_state = state.as_ref().map(|(buffer, _)| vec![0.0; buffer.len()]);
    if let (Some(host), Some((buffer, _))) = (&mut final_state, &state) {
        buffer.copy_to(&mut host[..]).map_err(DriverError::from).map_err(CudaError::from)?;
    }
    if !poisoned.is_empty() {
        out.copy_to(&mut poisoned[..]).map_err(DriverError::from).map_err(CudaError::from)?;
    }
    call.out.data.copy_from_slice(&poisoned);
    if let (Some(state), Some(host)) = (&mut call.state, &final_state) {
        state.data.copy_from_slice(host);
    }
    Ok(launch)
}

/// The elements of each row of the output.
fn for_each_row(call: &Call<'_>, mut row: impl FnMut(core::ops::Range<usize>)) {
    for token in 0..call.tokens {
        for head in 0..call.heads.num_v_heads {
            let start = token * call.out.strides.token + head * call.out.strides.head;
            row(start..start + call.heads.head_v_dim);
        }
    }
}
