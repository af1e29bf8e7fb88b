//! The recurrence on candle's own device memory and stream.
use super::strides;
use crate::recurrence::Inputs;
use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, Error, Layout, Result, Storage, Tensor};
use host::cuda::{Call, Gates, Gdn, State, Stream, View};
use host::{Dtype, Kernel, StateLayout, Strides};

/// The output of one call; the state is carried on.
pub(super) fn run(
    gdn: &Gdn,
    kernel: Kernel,
    inputs: &Inputs<'_>,
    state: &mut CudaStorage,
    layout: &Layout,
) -> Result<Tensor> {
    let Inputs { heads, q, k, v, g, beta } = *inputs;
    let shape @ (tokens, values, width) = (q.dim(0)?, heads.num_v_heads, heads.head_v_dim);
    let device = state.device().clone();
    let stream = device.cuda_stream();
    // SAFETY: the call below writes every element.
    let mut out = unsafe { device.alloc::<f32>(tokens * values * width)? };
    {
        let tensors = [q, k, v, g, beta].map(Tensor::storage_and_layout);
        let mut views = Vec::new();
        // What keeps candle from using the memory on another stream meanwhile.
        let mut guards = Vec::new();
        for (storage, layout) in &tensors {
            let Storage::Cuda(storage) = &**storage else {
                return Err(Error::msg("all tensors of a call are in one place"));
            };
            let (pointer, guard) = storage.as_cuda_slice::<f32>()?.device_ptr(&stream);
            views.push(View::new(address(pointer, layout), Dtype::F32, strides(layout)?));
            guards.push(guard);
        }
        let (state, _state_guard) = f32::as_cuda_slice_mut(state)?.device_ptr_mut(&stream);
        let (written, _out_guard) = out.device_ptr_mut(&stream);
        let call = Call::new(
            heads,
            tokens,
            views[0],
            views[1],
            views[2],
            Gates::Log { g: views[3], beta: views[4] },
            View::new(written, Dtype::F32, Strides::dense(values, width)),
        )
        .state(State::new(address(state, layout), StateLayout::key_major(&heads), 1));
        // SAFETY: types: f32, as `as_cuda_slice` has checked. Lengths: those of candle's tensors, whose shapes the call
        // has. Lifetime: candle frees memory in the order of its stream, which is the call's.
        let launch = unsafe {
            let stream = Stream::from_raw(stream.cu_stream().cast());
            match tokens {
                1 => gdn.decode(&call, stream),
                _ => gdn.prefill_by(&call, kernel, stream),
            }
        };
        launch.map_err(Error::wrap)?;
    }
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(out, device));
    Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
}

/// Of the first element of a tensor of f32.
fn address(storage: u64, layout: &Layout) -> u64 {
    storage + (layout.start_offset() * size_of::<f32>()) as u64
}
