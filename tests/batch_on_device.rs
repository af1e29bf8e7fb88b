//! A batch in an engine's device memory, with its states in a pool and a table of slots that may change between replays.
use cust::context::CurrentContext;
use cust::memory::{CopyDestination, DeviceBuffer};
use host::cuda::{Call, Gates, Gdn, Indices, Scratch, State, Stream, View};
use host::{Dtype, IndexDtype, Launch, Result, StateLayout, Strides};

use crate::batch::{Batch, Numbers, Outputs};
use crate::checks::Output;

/// A batch on the device.
#[derive(Debug)]
pub struct BatchOnDevice<'a> {
    batch: &'a Batch,
    /// q, k, v, g, beta, out.
    buffers: [DeviceBuffer<u8>; 6],
    pool: DeviceBuffer<f32>,
    table: DeviceBuffer<i32>,
}

fn bytes(numbers: &Numbers) -> Vec<u8> {
    match numbers {
        Numbers::F32(data) => data.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
        Numbers::Bf16(data) => data.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
        Numbers::F16(data) => data.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
    }
}

fn dtype(numbers: &Numbers) -> Dtype {
    numbers.view(0, Strides::dense(1, 1)).data.dtype()
}

impl<'a> BatchOnDevice<'a> {
    /// Copies the batch; the output and `slots` slots of states are NaN, the table is padding.
    ///
    /// # Panics
    /// As all of these, where the driver refuses.
    #[must_use]
    pub fn new(batch: &'a Batch, slots: usize) -> Self {
        let out = batch.poisoned_out();
        let buffers = [&batch.q, &batch.k, &batch.v, &batch.g, &batch.beta, &out]
            .map(|numbers| DeviceBuffer::from_slice(&bytes(numbers)).unwrap());
        let pool = DeviceBuffer::from_slice(&vec![f32::NAN; slots * batch.heads.state_len()]).unwrap();
        let table = DeviceBuffer::from_slice(&vec![-1; batch.lengths.len()]).unwrap();
        CurrentContext::synchronize().unwrap();
        Self { batch, buffers, pool, table }
    }

    /// Names the slot of each sequence, and puts its state there.
    ///
    /// # Panics
    /// As [`BatchOnDevice::new`].
    pub fn place(&mut self, slots: &[i32]) {
        let length = self.batch.heads.state_len();
        let mut host = vec![f32::NAN; self.pool.len()];
        for (state, &slot) in self.batch.states.iter().zip(slots) {
            // One that the pool has not is padding, as a negative one is.
            if let Some(slot) = usize::try_from(slot).ok().filter(|slot| (slot + 1) * length <= host.len()) {
                host[slot * length..][..length].copy_from_slice(state);
            }
        }
        self.pool.copy_from(&host[..]).unwrap();
        self.table.copy_from(slots).unwrap();
        let out = bytes(&self.batch.poisoned_out());
        self.buffers[5].copy_from(&out[..]).unwrap();
        CurrentContext::synchronize().unwrap();
    }

    /// The pool.
    #[must_use]
    pub fn state(&self) -> State {
        let heads = &self.batch.heads;
        let slots = self.pool.len() / heads.state_len();
        State::new(self.pool.as_device_ptr().as_raw(), StateLayout::key_major(heads), slots)
    }

    /// The table.
    #[must_use]
    pub fn indices(&self) -> Indices {
        Indices::new(self.table.as_device_ptr().as_raw(), IndexDtype::I32)
    }

    /// The call.
    pub fn call(&self) -> Call<'a> {
        let batch = self.batch;
        let (keys, values) = (batch.heads.num_k_heads, batch.heads.num_v_heads);
        let tokens = batch.lengths.first().copied().unwrap_or(0);
        let view = |index: usize, numbers: &Numbers, heads: usize, dim: usize| {
            let pointer = self.buffers[index].as_device_ptr().as_raw();
            View::new(pointer, dtype(numbers), Strides::dense(heads, dim)).batch_stride(tokens * heads * dim)
        };
        let gates = Gates::Log { g: view(3, &batch.g, values, 1), beta: view(4, &batch.beta, values, 1) };
        let out = Numbers::new(&[], batch.out);
        Call::new(
            batch.heads,
            batch.sequences(),
            view(0, &batch.q, keys, 128),
            view(1, &batch.k, keys, 128),
            view(2, &batch.v, values, 128),
            gates,
            view(5, &out, values, 128),
        )
        .scale(batch.scale)
        .qk_norm(batch.norm)
        .state(self.state())
        .state_indices(self.indices())
    }

    /// Enqueues a decode.
    ///
    /// # Errors
    /// Those of [`Gdn::decode`].
    pub fn decode(&self, gdn: &Gdn, stream: Stream) -> Result<Launch> {
        // SAFETY: the pointers are those of the buffers, which live and are not used until the stream is synchronised.
        unsafe { gdn.decode(&self.call(), stream) }
    }

    /// Enqueues a prefill.
    ///
    /// # Errors
    /// Those of [`Gdn::prefill_in`].
    pub fn prefill(&self, gdn: &Gdn, scratch: Scratch<'_>, stream: Stream) -> Result<Launch> {
        // SAFETY: as above; borrowed scratch is the test's own.
        unsafe { gdn.prefill_in(&self.call(), scratch, stream) }
    }

    /// Output and state of each sequence, by the slots it was placed in; a state of padding is empty.
    ///
    /// # Panics
    /// As [`BatchOnDevice::new`].
    #[must_use]
    pub fn outputs(&self, slots: &[i32]) -> Outputs {
        let (mut out, mut pool) = (vec![0u8; self.buffers[5].len()], vec![0.0f32; self.pool.len()]);
        self.buffers[5].copy_to(&mut out[..]).unwrap();
        self.pool.copy_to(&mut pool[..]).unwrap();
        let out = match self.batch.out {
            Dtype::F32 => Numbers::F32(out.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()),
            Dtype::Bf16 => Numbers::Bf16(out.as_chunks().0.iter().map(|&x| half::bf16::from_le_bytes(x)).collect()),
            _ => Numbers::F16(out.as_chunks().0.iter().map(|&x| half::f16::from_le_bytes(x)).collect()),
        };
        let length = self.batch.heads.state_len();
        let state =
            |slot: i32| usize::try_from(slot).map_or(Vec::new(), |slot| pool[slot * length..][..length].to_vec());
        self.batch.cut(&out).into_iter().zip(slots).map(|(out, &slot)| Output { out, state: state(slot) }).collect()
    }
}
