//! States on the device: cleared, copied from layout to layout, and owned by a pool for engines without one.
use super::call::pool_of;
use super::device::Device;
use super::error::CudaError;
use super::raw::{self, check};
use super::scratch::Memory;
use super::tensors::State;
use super::{Gdn, Stream};
use crate::copies::{self, Source};
use crate::error::{Error, Result};
use crate::heads::Heads;
use crate::layout::StateLayout;
use crate::request::Pool;
use crate::slots::{Slot, Slots};
use std::sync::Arc;

impl Gdn {
    /// Fills slots of `state` with zeros, and nothing between their rows: a slot that a new sequence starts in. The numbers
    /// travel with the launch, so that a captured one keeps them.
    ///
    /// # Errors
    /// [`Error::HeadDim`], [`Error::Shape`], [`Error::Null`], [`Error::Misaligned`], [`Error::Slot`] or
    /// [`Error::SharedSlot`] before anything is launched; [`Error::Cuda`] where a launch fails.
    ///
    /// # Safety
    /// The states are device memory of this context until the stream has passed the call, without conflicting access from
    /// another stream.
    pub unsafe fn zero_states(&self, heads: &Heads, state: State, slots: &[u32], stream: Stream) -> Result<()> {
        // SAFETY: by the caller.
        unsafe { self.copy(heads, None, pool_of("state", state), slots, stream) }
    }

    /// Copies the states in slots `from_slots` of `from` to slots `to_slots` of `to`, one by one, whatever the two layouts are:
    /// forks, a cache of prefixes, swapping. `from` may be `to`, where no slot that is written is read too.
    ///
    /// # Errors
    /// As [`Gdn::zero_states`].
    ///
    /// # Safety
    /// As [`Gdn::zero_states`].
    pub unsafe fn copy_states(
        &self,
        heads: &Heads,
        (from, from_slots): (State, &[u32]),
        (to, to_slots): (State, &[u32]),
        stream: Stream,
    ) -> Result<()> {
        let source = (pool_of("from", from), from_slots);
        // SAFETY: by the caller.
        unsafe { self.copy(heads, Some(source), pool_of("to", to), to_slots, stream) }
    }

    /// # Safety
    /// As [`Gdn::zero_states`].
    unsafe fn copy(
        &self,
        heads: &Heads,
        from: Option<Source<'_>>,
        to: Pool,
        slots: &[u32],
        stream: Stream,
    ) -> Result<()> {
        copies::require(heads, from, &to, slots)?;
        let _current = self.device.current()?;
        copies::launches(heads, from, to, slots).try_for_each(|launch| {
            // SAFETY: types: the entry takes these arguments. Lengths: `require` has checked slots and strides, the caller
            // vouches for the memory. Lifetime: the caller's, until the stream has passed the launch.
            unsafe { self.device.launch(launch.entry, launch.grid, &launch.args, stream) }
        })
    }
}

/// States of every layer for so many sequences at once, on the device, for engines without a pool of their own: one slot
/// number serves all layers. It does not grow, so that addresses in captured graphs stay right.
#[derive(Debug)]
pub struct StatePool {
    device: Arc<Device>,
    memory: Memory,
    layout: StateLayout,
    layers: usize,
    slots: Slots,
}

impl StatePool {
    /// Memory for `capacity` slots in each of `layers` layers.
    ///
    /// # Errors
    /// [`Error::Shape`] where slots of `layout` are not apart or their bytes do not fit; [`Error::HeadDim`]; [`Error::Cuda`]
    /// where there is not so much memory.
    pub fn new(gdn: &Gdn, heads: &Heads, layout: StateLayout, layers: usize, capacity: usize) -> Result<Self> {
        heads.require_128()?;
        let slots = Slots::new(capacity)?;
        if layout.slot < layout.elements(heads) {
            let expected = format!("at least {} elements, so that slots lie apart", layout.elements(heads));
            return Err(Error::shape("layout.slot", expected, layout.slot));
        }
        let floats = layers.checked_mul(capacity).and_then(|count| count.checked_mul(layout.slot));
        let bytes = floats.and_then(|floats| floats.checked_mul(size_of::<f32>()));
        let Some(bytes) = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            return Err(Error::shape("capacity", "layers and slots whose bytes fit 63 bits", capacity));
        };
        let _current = gdn.device.current()?;
        let memory = Memory::allocate(bytes).map_err(CudaError::from)?;
        Ok(Self { device: Arc::clone(&gdn.device), memory, layout, layers, slots })
    }

    /// A slot that is zero in every layer once `stream` has passed this call. Work of its last owner has to be behind: on the
    /// same stream, or waited for. It is free again when it is dropped, or given to [`StatePool::release`].
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] where none is free; [`Error::Cuda`].
    ///
    /// # Safety
    /// `stream` is alive.
    pub unsafe fn acquire(&self, stream: Stream) -> Result<Slot> {
        let slot = self.slots.acquire()?;
        let _current = self.device.current()?;
        let first = slot.index() as usize * self.layout.slot;
        for layer in 0..self.layers {
            let pointer = self.layer(layer).pointer + (first * size_of::<f32>()) as u64;
            // SAFETY: bounds: the slot is one of the pool's. Lifetime: the pool's, which waits in `drop`.
            let code = unsafe { raw::cuMemsetD32Async(pointer, 0, self.layout.slot, stream.as_raw().cast()) };
            check("cuMemsetD32Async", code).map_err(CudaError::from)?;
        }
        Ok(slot)
    }

    /// Gives a slot back, as dropping it does.
    pub fn release(&self, slot: Slot) {
        drop(slot);
    }

    /// The states of a layer, for a call.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn layer(&self, layer: usize) -> State {
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        let first = layer * self.slots.capacity() * self.layout.slot;
        State::new(self.memory.pointer + (first * size_of::<f32>()) as u64, self.layout, self.slots.capacity())
    }

    /// Slots that there are.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Slots that are taken.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.slots.in_use()
    }
}

impl Drop for StatePool {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.current() {
            // The driver waits for work that uses it.
            self.memory.free();
        }
    }
}
