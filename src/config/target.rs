//! The value of the option `stats`.

use std::fmt;
use std::path::Path;

/// Where the option `stats` sends the statistics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatsTarget {
    /// They are not written.
    Off,
    /// To standard error.
    Stderr,
    /// To the file of this pattern: `%e` program, `%p` process id, `%h` host,
    /// `%r` rank, `%%` a percent sign.
    File(String),
}

impl Default for StatsTarget {
    fn default() -> StatsTarget {
        StatsTarget::File("vramalloc.%e.%p.json".to_owned())
    }
}

impl fmt::Display for StatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StatsTarget::Off => "off",
            StatsTarget::Stderr => "stderr",
            StatsTarget::File(pattern) => pattern,
        })
    }
}

/// What is said to switch something on or off, or for a program's output: whoever writes
/// this means no file of such a name.
const NO_FILES: [&str; 12] = [
    "-", "stdout", "stderr", "on", "off", "yes", "no", "true", "false", "none", "0", "1",
];

impl StatsTarget {
    /// The value of `text`; `None` if it is empty, a word such as `on` or `-` by which no
    /// file is meant, or holds a `%` that is not followed by one of `e`, `p`, `h`, `r`,
    /// `%`.
    #[must_use]
    pub fn read(text: &str) -> Option<StatsTarget> {
        match text {
            "off" => return Some(StatsTarget::Off),
            "stderr" => return Some(StatsTarget::Stderr),
            _ if NO_FILES.iter().any(|word| word.eq_ignore_ascii_case(text)) => return None,
            _ => {}
        }
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            let readable = match c {
                '%' => matches!(rest.next(), Some('e' | 'p' | 'h' | 'r' | '%')),
                '\0' => false,
                _ => true,
            };
            if !readable {
                return None;
            }
        }
        (!text.is_empty()).then(|| StatsTarget::File(text.to_owned()))
    }

    /// Makes a relative file name begin in this folder, so that it holds
    /// wherever the process goes. Changes nothing if the folder is not an
    /// absolute path in UTF-8.
    #[must_use]
    pub fn within(self, folder: &Path) -> StatsTarget {
        match (self, folder.to_str()) {
            (StatsTarget::File(pattern), Some(folder))
                if folder.starts_with('/') && !pattern.starts_with('/') =>
            {
                let folder = folder.replace('%', "%%");
                StatsTarget::File(format!("{}/{pattern}", folder.trim_end_matches('/')))
            }
            (target, _) => target,
        }
    }
}
