//! Whether a kernel gives the same bits every time, alone and beside other work on a second stream.
use super::call::Call;
use super::error::{CudaError, DriverError};
use super::tensors::{Gates, State, View};
use super::{Gdn, Scratch, Stream, Workspace};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::inputs::Inputs;
use crate::kernel::Kernel;
use crate::layout::{StateLayout, Strides};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;

impl Gdn {
    /// How many of `reruns` runs of `kernel` on `inputs` give other bits than the first. Outputs and scratch are NaN before
    /// every other run. Where there are `other` inputs, they run on a second stream all the while.
    ///
    /// # Errors
    /// As [`Gdn::prefill_by`], and whatever copies say.
    pub fn count_differing_reruns(
        &self,
        inputs: &Inputs,
        other: Option<&Inputs>,
        kernel: Kernel,
        reruns: u32,
    ) -> Result<u32> {
        let _current = self.device.current()?;
        let forced = self.forced(Some(kernel));
        let mut one = Bed::new(&forced, inputs)?;
        let mut two = other.map(|other| Bed::new(&forced, other)).transpose()?;
        // Copies are on the legacy stream, which the beds' streams do not wait for.
        self.synchronize(Stream::LEGACY)?;
        one.enqueue(true)?;
        self.synchronize(one.stream())?;
        let mut first = one.room();
        one.download(&mut first)?;
        let mut again = one.room();
        let mut differing = 0;
        for turn in 0..reruns {
            let poison = turn % 2 == 0;
            if let Some(two) = &mut two {
                two.enqueue(poison)?;
            }
            one.enqueue(poison)?;
            if let Some(two) = &mut two {
                two.enqueue(false)?;
            }
            self.synchronize(one.stream())?;
            one.download(&mut again)?;
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            let alike = |a: &[f32], b: &[f32]| a.iter().zip(b).all(same);
            if !(alike(&first.0, &again.0) && alike(&first.1, &again.1)) {
                differing += 1;
            }
        }
        if let Some(two) = &two {
            self.synchronize(two.stream())?;
        }
        Ok(differing)
    }
}

/// Inputs, outputs, scratch and a stream of their own, so that two of them do run at once.
struct Bed {
    gdn: Gdn,
    workspace: Workspace,
    heads: crate::Heads,
    tokens: usize,
    scale: f32,
    /// q, k, v, g, beta, initial state.
    inputs: [DeviceBuffer<f32>; 6],
    out: DeviceBuffer<f32>,
    state: DeviceBuffer<f32>,
    stream: cust::stream::Stream,
}

fn driver<T>(result: cust::error::CudaResult<T>) -> Result<T> {
    Ok(result.map_err(DriverError::from).map_err(CudaError::from)?)
}

impl Bed {
    fn new(gdn: &Gdn, inputs: &Inputs) -> Result<Self> {
        let upload = |slice: &[f32]| driver(DeviceBuffer::from_slice(slice));
        let mut bed = Self {
            gdn: gdn.clone(),
            workspace: Workspace::none(gdn),
            heads: inputs.heads,
            tokens: inputs.tokens,
            scale: inputs.scale,
            inputs: [
                upload(&inputs.q)?,
                upload(&inputs.k)?,
                upload(&inputs.v)?,
                upload(&inputs.g)?,
                upload(&inputs.beta)?,
                upload(&inputs.state)?,
            ],
            out: upload(&vec![f32::NAN; inputs.out_len(inputs.tokens)])?,
            state: upload(&vec![f32::NAN; inputs.state_len()])?,
            stream: driver(cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None))?,
        };
        bed.workspace = gdn.workspace(&bed.call())?;
        Ok(bed)
    }

    fn stream(&self) -> Stream {
        Stream::from(&self.stream)
    }

    fn call(&self) -> Call<'static> {
        let heads = self.heads;
        let [q, k, v, g, beta, initial_state] = &self.inputs;
        let view = |buffer: &DeviceBuffer<f32>, heads, dim| {
            View::new(buffer.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(heads, dim))
        };
        let state =
            |buffer: &DeviceBuffer<f32>| State::new(buffer.as_device_ptr().as_raw(), StateLayout::key_major(&heads), 1);
        Call::new(
            heads,
            self.tokens,
            view(q, heads.num_k_heads, heads.head_k_dim),
            view(k, heads.num_k_heads, heads.head_k_dim),
            view(v, heads.num_v_heads, heads.head_v_dim),
            Gates::Log { g: view(g, heads.num_v_heads, 1), beta: view(beta, heads.num_v_heads, 1) },
            view(&self.out, heads.num_v_heads, heads.head_v_dim),
        )
        .scale(self.scale)
        .initial_state(state(initial_state))
        .final_state(state(&self.state))
    }

    fn enqueue(&mut self, poison: bool) -> Result<()> {
        let stream = self.stream();
        if poison {
            let scratch = (self.workspace.memory.pointer, self.workspace.bytes() / size_of::<f32>());
            let buffer = |buffer: &DeviceBuffer<f32>| (buffer.as_device_ptr().as_raw(), buffer.len());
            for (pointer, floats) in [buffer(&self.out), buffer(&self.state), scratch] {
                // SAFETY: types: any bits are f32s. Lengths: the buffer's own. Lifetime: `self`'s, whose stream is
                // synchronised before it goes (`drop`).
                unsafe { self.gdn.poison(pointer, floats, stream)? };
            }
        }
        let call = self.call();
        // SAFETY: types: f32 buffers. Lengths: those of `Inputs`, dense. Lifetime: as above.
        unsafe { self.gdn.prefill_in(&call, Scratch::Workspace(&mut self.workspace), stream)? };
        Ok(())
    }

    /// Host memory for output and state.
    fn room(&self) -> (Vec<f32>, Vec<f32>) {
        (vec![0.0; self.out.len()], vec![0.0; self.state.len()])
    }

    /// Output and state. The stream has been synchronised.
    fn download(&self, (out, state): &mut (Vec<f32>, Vec<f32>)) -> Result<()> {
        if !out.is_empty() {
            driver(self.out.copy_to(&mut out[..]))?;
        }
        driver(self.state.copy_to(&mut state[..]))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}
