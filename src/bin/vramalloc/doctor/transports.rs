//! Libraries that hand a device's memory to network cards, where memory is mapped.
//!
//! They register memory as one piece. What `strategy:mapped` gives lies in several
//! units, and not every driver makes these so that other hardware may use them: such a
//! library then copies by way of the host without a word, or refuses. No file says
//! which of both, so its presence is told.

use std::path::Path;

use vramalloc_core::config::{StrategyKind, load};

use super::findings::Findings;

/// A library that moves memory, by how the names of its files begin, or by a folder.
struct Transport {
    name: &'static str,
    files: &'static [&'static str],
    folder: Option<&'static str>,
}

const TRANSPORTS: [Transport; 4] = [
    Transport {
        name: "UCX",
        files: &["libucp.so", "libuct.so", "libucs.so"],
        folder: None,
    },
    Transport {
        name: "NIXL",
        files: &["libnixl"],
        folder: Some("nixl"),
    },
    Transport {
        name: "Mooncake",
        files: &["libtransfer_engine", "libmooncake"],
        folder: Some("mooncake"),
    },
    Transport {
        name: "ibverbs",
        files: &["libibverbs.so"],
        folder: None,
    },
];

impl Transport {
    fn is_of(&self, path: &Path) -> bool {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().and_then(Path::file_name);
        let in_folder = self.folder.is_some() && folder.and_then(|f| f.to_str()) == self.folder;
        in_folder || self.files.iter().any(|start| file.starts_with(start))
    }
}

/// The transports that were told.
pub(super) struct Transports {
    is_mapped: bool,
    told: [bool; TRANSPORTS.len()],
}

impl Transports {
    /// None so far, under the options of this environment.
    pub(super) fn of_environment() -> Transports {
        let loaded = load(std::env::vars_os(), vramalloc_core::config::Host::default());
        Transports::under(loaded.settings.config.strategy)
    }

    fn under(strategy: StrategyKind) -> Transports {
        Transports {
            is_mapped: strategy == StrategyKind::Mapped,
            told: [false; TRANSPORTS.len()],
        }
    }

    /// Tells each transport once that is among these files, where memory is mapped.
    pub(super) fn examine<'a>(
        &mut self,
        files: impl IntoIterator<Item = &'a Path>,
        findings: &mut Findings,
    ) {
        for file in files.into_iter().filter(|_| self.is_mapped) {
            let found = TRANSPORTS
                .iter()
                .position(|transport| transport.is_of(file));
            let Some((number, transport)) = found.and_then(|n| Some((n, TRANSPORTS.get(n)?)))
            else {
                continue;
            };
            let is_told = self.told.get_mut(number);
            if is_told.is_none_or(|told| std::mem::replace(told, true)) {
                continue;
            }
            let name = file.file_name().unwrap_or(file.as_os_str());
            findings.note(
                "network",
                format_args!(
                    "{} ({}) hands memory to network cards. With memory of strategy:mapped, which \
                     lies in several pieces, that may be slow or refused; dedicated_min gives \
                     large requests plain memory, strategy:auto_growth all requests",
                    name.to_string_lossy(),
                    transport.name,
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_told_once_and_only_where_memory_is_mapped() {
        let files = [
            "/usr/lib/libucp.so.0",
            "/usr/lib/libucs.so.0",
            "/site/mooncake/engine.cpython-312-x86_64-linux-gnu.so",
            "/site/nixl/_bindings.so",
            "/usr/lib/libibverbs.so.1",
            "/usr/lib/libc.so.6",
            "/usr/lib/libucrypt.so",
        ];
        let told = |strategy| {
            let mut findings = Findings::new(false);
            let mut transports = Transports::under(strategy);
            transports.examine(files.iter().map(Path::new), &mut findings);
            transports.examine(files.iter().map(Path::new), &mut findings);
            anstream::adapter::strip_str(&findings.take()).to_string()
        };
        assert_eq!(told(StrategyKind::AutoGrowth), "");
        let text = told(StrategyKind::Mapped);
        for name in [
            "libucp.so.0 (UCX)",
            "(Mooncake)",
            "_bindings.so (NIXL)",
            "libibverbs.so.1",
        ] {
            assert_eq!(text.matches(name).count(), 1, "{name}: {text}");
        }
        assert_eq!(text.matches("network  ").count(), 4, "{text}");
    }
}
