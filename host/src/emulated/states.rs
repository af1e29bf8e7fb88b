//! States that are cleared and copied, by the kernel that does it on a device.
use super::launch;
use crate::call::{State, StateView};
use crate::copies::{self, Source};
use crate::error::Result;
use crate::heads::Heads;
use crate::request::Pool;
use cuda_std::emulator::Memory;

/// [`cpu::zero_states`](crate::cpu::zero_states) in the emulator.
///
/// # Errors
/// Those of [`cpu::zero_states`](crate::cpu::zero_states); [`Error::Emulator`](crate::Error::Emulator).
pub fn zero_states(heads: &Heads, state: State<'_>, slots: &[u32], order: u64) -> Result<()> {
    let to = Pool::of("state", heads, state.data, state.layout);
    copy(heads, None, to, slots, order, |memory| memory.read_write(state.data).as_ptr().expose_provenance())
}

/// [`cpu::copy_states`](crate::cpu::copy_states) in the emulator.
///
/// # Errors
/// Those of [`cpu::copy_states`](crate::cpu::copy_states); [`Error::Emulator`](crate::Error::Emulator).
pub fn copy_states(
    heads: &Heads,
    (from, from_slots): (StateView<'_>, &[u32]),
    (to, to_slots): (State<'_>, &[u32]),
    order: u64,
) -> Result<()> {
    let source = Pool::of("from", heads, from.data, from.layout);
    let target = Pool::of("to", heads, to.data, to.layout);
    copy(heads, Some((source, from_slots)), target, to_slots, order, |memory| {
        memory.read_only(from.data);
        memory.read_write(to.data).as_ptr().expose_provenance()
    })
}

/// `lend` makes known what the launches touch.
fn copy<'a>(
    heads: &Heads,
    from: Option<Source<'_>>,
    to: Pool,
    slots: &[u32],
    order: u64,
    lend: impl FnOnce(&mut Memory<'a>) -> usize,
) -> Result<()> {
    copies::require(heads, from, &to, slots)?;
    let mut memory = Memory::new();
    lend(&mut memory);
    copies::launches(heads, from, to, slots)
        .try_for_each(|step| launch(step.entry, step.grid, step.args, &memory, order))
}
