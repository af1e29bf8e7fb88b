//! The committed PTX, and which file a device takes.
#![forbid(unsafe_code)]
use core::ffi::CStr;

const SM_75: &str = concat!(include_str!("../../ptx/gdn_sm_75.ptx"), "\0");
const SM_80: &str = concat!(include_str!("../../ptx/gdn_sm_80.ptx"), "\0");

/// The least compute capability, times ten, that any file is for.
pub const MINIMUM_CAPABILITY: u32 = 75;

/// The newest file that a device of `capability` (times ten) can load. All targets are plain ones, so a card newer than
/// this crate takes the newest.
pub fn for_capability(capability: u32) -> Option<&'static CStr> {
    let text = match capability {
        80.. => SM_80,
        MINIMUM_CAPABILITY..80 => SM_75,
        _ => return None,
    };
    Some(CStr::from_bytes_with_nul(text.as_bytes()).expect("PTX has one NUL, at its end"))
}

/// The value of a PTX directive such as `.version`.
pub fn directive(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line.map_or_else(|| "?".to_owned(), |value| value.trim().to_owned())
}

/// What to do about a code of `cuModuleLoadDataEx`.
pub fn cure(code: i32) -> &'static str {
    match code {
        222 => {
            "the driver is too old for this PTX; update it (CUDA 11.0 or newer), or rebuild with `cargo xtask build-ptx`"
        }
        209 => "the PTX has no kernel for this device; rebuild with `cargo xtask build-ptx`",
        218 => "the driver does not accept the PTX; update the driver, or rebuild with `cargo xtask build-ptx`",
        2 => "the device is out of memory",
        _ => "see the driver's message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_from_turing_on_has_a_file() {
        for (capability, target) in [
            (61, None),
            (70, None),
            (75, Some("sm_75")),
            (80, Some("sm_80")),
            (86, Some("sm_80")),
            (89, Some("sm_80")),
            (90, Some("sm_80")),
            (100, Some("sm_80")),
            (103, Some("sm_80")),
            (120, Some("sm_80")),
            (121, Some("sm_80")),
            (130, Some("sm_80")),
        ] {
            let file = for_capability(capability).map(|ptx| directive(&ptx.to_string_lossy(), ".target"));
            assert_eq!(file.as_deref(), target, "capability {capability}");
        }
    }
}
