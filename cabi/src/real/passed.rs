//! Which doors the program has come through, for the statistics.

use crate::process::guard::Passed;
use crate::real::intercepted;

macro_rules! flags {
    ($(
        $library:ident $entry:ident $module:ident $since:literal
        $name:ident($($argument:ident: $type:ty),* $(,)?);
    )*) => {
        $(
            #[allow(non_upper_case_globals, reason = "CUDA's names")]
            pub(crate) static $name: Passed = Passed::new();
        )*

        /// The names of these doors, in the order of the list.
        pub(crate) fn names() -> Vec<&'static str> {
            let all = [$((stringify!($name), &$name)),*];
            let passed = all.iter().filter(|(_, passed)| passed.get());
            passed.map(|(name, _)| *name).collect()
        }
    };
}

intercepted! { flags }
