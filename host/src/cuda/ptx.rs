//! The committed PTX, and which file a device takes.
#![forbid(unsafe_code)]
use core::ffi::CStr;
use cuda_std::kernel::Architecture;
use kernels_gpu::table::{self, FILES};

/// What `cuModuleLoadDataEx` says of PTX that it cannot read.
const INVALID_PTX: i32 = 218;
/// What it says of a PTX version newer than its own, where it knows of later ones at all.
const UNSUPPORTED_PTX_VERSION: i32 = 222;

/// A PTX file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// The cards that it is for.
    pub architecture: Architecture,
    /// The PTX, with a NUL at its end.
    pub text: &'static str,
}

/// In the order of [`FILES`].
const TEXTS: [File; 3] = [
    File { architecture: FILES[0], text: concat!(include_str!("../../ptx/gdn_sm_75.ptx"), "\0") },
    File { architecture: FILES[1], text: concat!(include_str!("../../ptx/gdn_sm_80.ptx"), "\0") },
    File { architecture: FILES[2], text: concat!(include_str!("../../ptx/gdn_sm_90a.ptx"), "\0") },
];

/// The least compute capability, times ten, that any file is for.
pub const MINIMUM_CAPABILITY: u32 = FILES[0].capability();

impl File {
    /// The best for a device of `capability` (times ten). A card newer than this crate takes the newest of those that later
    /// cards run.
    pub fn for_capability(capability: u32) -> Option<Self> {
        let architecture = table::file_for(capability)?;
        TEXTS.into_iter().find(|file| file.architecture == architecture)
    }

    /// The PTX as the driver takes it.
    pub fn image(self) -> &'static CStr {
        CStr::from_bytes_with_nul(self.text.as_bytes()).expect("PTX has one NUL, at its end")
    }

    /// What to load where a driver gave `code` for this file. One for a single card asks for a newer driver than the card
    /// does, which must not cost the kernels that need none.
    pub fn instead(self, code: i32) -> Option<Self> {
        let Architecture::Only(capability) = self.architecture else { return None };
        let too_new = matches!(code, INVALID_PTX | UNSUPPORTED_PTX_VERSION);
        let serves = |file: &Self| file.architecture != self.architecture && file.architecture.runs_on(capability);
        if too_new { TEXTS.into_iter().rfind(serves) } else { None }
    }
}

/// The value of a PTX directive such as `.version`.
pub fn directive(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line.map_or_else(|| "?".to_owned(), |value| value.trim().to_owned())
}

/// What to do about a code of `cuModuleLoadDataEx`.
pub fn cure(code: i32) -> &'static str {
    match code {
        UNSUPPORTED_PTX_VERSION => {
            "the driver is too old for this PTX; update it (CUDA 11.0 or newer), or rebuild with `cargo xtask build-ptx`"
        }
        209 => "the PTX has no kernel for this device; rebuild with `cargo xtask build-ptx`",
        INVALID_PTX => "the driver does not accept the PTX; update the driver, or rebuild with `cargo xtask build-ptx`",
        2 => "the device is out of memory",
        _ => "see the driver's message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target_of(file: File) -> String {
        directive(file.text, ".target")
    }

    #[test]
    fn files_are_for_the_cards_that_they_say() {
        for file in TEXTS {
            assert_eq!(target_of(file), file.architecture.target());
            assert!(file.image().to_str().is_ok());
        }
    }

    #[test]
    fn every_card_from_turing_on_has_a_file() {
        for (capability, target) in [
            (61, None),
            (70, None),
            (75, Some("sm_75")),
            (80, Some("sm_80")),
            (86, Some("sm_80")),
            (89, Some("sm_80")),
            (90, Some("sm_90a")),
            (91, Some("sm_80")),
            (100, Some("sm_80")),
            (103, Some("sm_80")),
            (120, Some("sm_80")),
            (121, Some("sm_80")),
            (130, Some("sm_80")),
        ] {
            let file = File::for_capability(capability);
            assert_eq!(file.map(target_of).as_deref(), target, "capability {capability}");
            assert_eq!(file.map(|file| file.architecture.target()).as_deref(), target, "capability {capability}");
        }
    }

    #[test]
    fn an_old_driver_costs_hopper_its_own_kernels_alone() {
        let hopper = File::for_capability(90).unwrap();
        for code in [INVALID_PTX, UNSUPPORTED_PTX_VERSION] {
            assert_eq!(hopper.instead(code).map(target_of).as_deref(), Some("sm_80"));
            // Where that is refused too, its error is the one to report.
            for capability in [75, 80, 89, 100, 120] {
                assert!(File::for_capability(capability).unwrap().instead(code).is_none());
            }
        }
        for code in [2, 209, 999] {
            assert!(hopper.instead(code).is_none(), "{code}");
        }
    }
}
