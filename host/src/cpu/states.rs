//! States that are cleared and copied: slots that are recycled, prefixes that are forked, layouts that change.
#![forbid(unsafe_code)]
use super::split;
use crate::call::{State, StateView};
use crate::copies;
use crate::error::Result;
use crate::heads::Heads;
use crate::request::Pool;

/// Fills the slots of `state` that `slots` names with zeros, and nothing between their rows.
///
/// # Errors
/// [`Error::HeadDim`](crate::Error::HeadDim), [`Error::Shape`](crate::Error::Shape) where rows overlap each other,
/// [`Error::Slot`](crate::Error::Slot) for a slot that is not there, [`Error::SharedSlot`](crate::Error::SharedSlot) for one
/// that is named twice; nothing has been written then.
pub fn zero_states(heads: &Heads, state: State<'_>, slots: &[u32]) -> Result<()> {
    let pool = Pool::of("state", heads, state.data, state.layout);
    copies::require(heads, None, &pool, slots)?;
    let mut views: Vec<_> = split::slots(state.data, pool.slots, heads, state.layout).collect();
    slots.iter().for_each(|&slot| views[slot as usize].fill(0.0));
    Ok(())
}

/// Copies the states in slots `from_slots` of `from` to slots `to_slots` of `to`, one by one, whatever the two layouts are.
///
/// # Errors
/// Those of [`zero_states`]; [`Error::Shape`](crate::Error::Shape) where the lists are not as long as each other.
pub fn copy_states(
    heads: &Heads,
    from: StateView<'_>,
    from_slots: &[u32],
    to: State<'_>,
    to_slots: &[u32],
) -> Result<()> {
    let from_pool = Pool::of("from", heads, from.data, from.layout);
    let to_pool = Pool::of("to", heads, to.data, to.layout);
    copies::require(heads, Some((from_pool, from_slots)), &to_pool, to_slots)?;
    let mut views: Vec<_> = split::slots(to.data, to_pool.slots, heads, to.layout).collect();
    for (&source, &target) in from_slots.iter().zip(to_slots) {
        views[target as usize].assign(&split::slot(from.data, source as usize, heads, from.layout));
    }
    Ok(())
}

/// [`copy_states`] inside one pool: forks of a sequence.
///
/// # Errors
/// Those of [`copy_states`]; [`Error::SharedSlot`](crate::Error::SharedSlot) where a slot that is written is read too.
pub fn copy_states_within(heads: &Heads, state: State<'_>, from_slots: &[u32], to_slots: &[u32]) -> Result<()> {
    let pool = Pool::of("state", heads, state.data, state.layout);
    copies::require(heads, Some((pool, from_slots)), &pool, to_slots)?;
    let mut views: Vec<_> = split::slots(state.data, pool.slots, heads, state.layout).collect();
    for (&source, &target) in from_slots.iter().zip(to_slots) {
        // The same slot twice stays as it is.
        if let Ok([source, target]) = views.get_disjoint_mut([source as usize, target as usize]) {
            target.assign(source);
        }
    }
    Ok(())
}
