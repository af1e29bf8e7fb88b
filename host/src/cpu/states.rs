//! States that are cleared and copied: slots that are recycled, prefixes that are forked, layouts that change.
#![forbid(unsafe_code)]
use super::split;
use super::uses::require_list;
use crate::call::{State, StateView};
use crate::error::{Error, Result};
use crate::heads::Heads;
use crate::request::Pool;

/// Fills the slots of `state` that `slots` names with zeros, and nothing between their rows.
///
/// # Errors
/// [`Error::HeadDim`], [`Error::Shape`] where the slots overlap each other, [`Error::Slot`] for one that is not there;
/// nothing has been written then.
pub fn zero_states(heads: &Heads, state: State<'_>, slots: &[u32]) -> Result<()> {
    let pool = pool("state", heads, &state)?;
    require_list("slots", slots, &pool, false)?;
    let mut views: Vec<_> = split::slots(state.data, pool.slots, heads, state.layout).collect();
    slots.iter().for_each(|&slot| views[slot as usize].fill(0.0));
    Ok(())
}

/// Copies the states in slots `from_slots` of `from` to slots `to_slots` of `to`, one by one, whatever the two layouts are.
///
/// # Errors
/// Those of [`zero_states`]; [`Error::Shape`] where the lists are not as long as each other, [`Error::SharedSlot`] where two
/// states would go to one slot.
pub fn copy_states(
    heads: &Heads,
    from: StateView<'_>,
    from_slots: &[u32],
    to: State<'_>,
    to_slots: &[u32],
) -> Result<()> {
    if from_slots.len() != to_slots.len() {
        return Err(Error::shape("to_slots", format!("{} slots, as from_slots has", from_slots.len()), to_slots.len()));
    }
    heads.require_128()?;
    let from_pool = Pool::of("from", heads, from.data, from.layout);
    require_list("from_slots", from_slots, &from_pool, false)?;
    let to_pool = pool("to", heads, &to)?;
    require_list("to_slots", to_slots, &to_pool, true)?;
    let mut views: Vec<_> = split::slots(to.data, to_pool.slots, heads, to.layout).collect();
    for (&source, &target) in from_slots.iter().zip(to_slots) {
        views[target as usize].assign(&split::slot(from.data, source as usize, heads, from.layout));
    }
    Ok(())
}

/// The pool, whose slots lie apart.
fn pool(argument: &'static str, heads: &Heads, state: &State<'_>) -> Result<Pool> {
    heads.require_128()?;
    let pool = Pool::of(argument, heads, state.data, state.layout);
    pool.require(heads, pool.slots)?;
    Ok(pool)
}
