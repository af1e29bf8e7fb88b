//! The PTX files, and the architectures that each is assembled for when it is verified.

use std::path::{Path, PathBuf};

use cuda_std::kernel::{Architecture, EntryFacts};
use kernels_gpu::table::{self, FILES};

/// One PTX file: the driver compiles it for the card at hand, which is why the oldest version that does is the best.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The cards that it is for. The file holds every entry that runs on all of them.
    pub architecture: Architecture,
    /// PTX version, the lowest that has the target: cards' owners complain of PTX newer than their driver.
    pub version: (u32, u32),
    /// The first driver that takes this version.
    pub driver_floor: &'static str,
}

/// One for each of [`FILES`], in their order.
pub const TARGETS: [Target; 3] = [
    Target { architecture: FILES[0], version: (6, 3), driver_floor: "410 (CUDA 10.0)" },
    Target { architecture: FILES[1], version: (7, 0), driver_floor: "450 (CUDA 11.0)" },
    Target { architecture: FILES[2], version: (8, 0), driver_floor: "525 (CUDA 12.0)" },
];

/// Every architecture that the project names.
pub const ARCHITECTURES: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

impl Target {
    /// `gdn_sm_80.ptx`.
    pub fn file_name(self) -> String {
        format!("gdn_{}.ptx", self.architecture.target())
    }

    /// Where the file lies.
    pub fn path(self, root: &Path) -> PathBuf {
        root.join("host/ptx").join(self.file_name())
    }

    /// The entries that belong into the file.
    pub fn entries(self) -> Vec<EntryFacts> {
        let mut entries = table::entries();
        entries.retain(|entry| entry.architecture.fits_in(self.architecture));
        entries
    }

    /// What the file is assembled for when it is verified: every architecture of the project that it runs on.
    pub fn assembled_for(self) -> Vec<String> {
        match self.architecture {
            Architecture::From(_) => {
                let cards = ARCHITECTURES.into_iter().filter(|&card| self.architecture.runs_on(card));
                cards.map(|card| Architecture::From(card).target()).collect()
            }
            Architecture::Only(_) => vec![self.architecture.target()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_assembled_for_every_card_that_loads_them() {
        assert_eq!(TARGETS.map(|target| target.architecture), FILES);
        let [oldest, plain, hopper] = TARGETS.map(Target::assembled_for);
        assert_eq!(oldest.len(), ARCHITECTURES.len());
        assert_eq!(plain, ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]);
        assert_eq!(hopper, ["sm_90a"]);
        assert_eq!(TARGETS[2].file_name(), "gdn_sm_90a.ptx");
    }
}
