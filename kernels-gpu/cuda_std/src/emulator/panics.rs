//! Where a kernel panicked. A panic's payload has its message alone; the place is known to the panic hook only.
use std::any::Any;
use std::panic;
use std::sync::Once;

use super::block::current_or_null;

/// Has the panic hook keep the place of a kernel's panic instead of printing it: the launch returns it as a fault, and
/// the backtrace that the standard hook may print needs more stack than an emulated thread has. Panics elsewhere go to
/// the hook that was there before.
pub(super) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let block = current_or_null();
            if block.is_null() {
                previous(info);
            } else {
                // SAFETY: owner: the block whose kernel runs on this OS thread; no reference to it is used across the
                // panic, since the thread does not go on.
                unsafe { (*block).panic_location = info.location().map(ToString::to_string) };
            }
        }));
    });
}

/// The message of a panic.
pub(super) fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(message) = payload.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = payload.downcast_ref::<String>() {
        message.clone()
    } else {
        "a panic without a message".to_owned()
    }
}
