//! Options that are changed while a program runs, by its C API or from outside.
//!
//! Invariant: a text that cannot be read changes nothing, and the echo names
//! who changed an option as its origin.

use super::Settings;
use super::load::{DEFAULT, Loaded};
use super::scheduler::show_device_limits;
use super::sources::read;
use super::table::{OPTIONS, OptionRow, Reading, Role, find};
use super::value::limit;

/// The origin of an option that the program has set.
const ORIGIN: &str = "vramalloc_ctl";

/// Why an option was not changed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Unchanged {
    /// No option has this name.
    Unknown,
    /// The option has no effect, or cannot be changed now.
    Fixed,
    /// The text cannot be read as a value of the option, or contradicts another
    /// option.
    Unreadable,
}

impl Loaded {
    /// The value of the option with this name, as text: empty if the option has
    /// no effect and was not given. Returns `None` if there is no such option.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<String> {
        let row = find(name)?.target();
        Some(match row.role {
            Role::Own(show) => show(&self.settings),
            Role::NoEffect(_) | Role::Sets(_) => {
                let given = self.echo.iter().find(|option| option.key == row.key);
                given.map_or_else(String::new, |option| option.value.clone())
            }
        })
    }

    /// Sets the option with this name, if `may_change` accepts its row.
    ///
    /// # Errors
    /// [`Unchanged`].
    pub fn change(
        &mut self,
        name: &str,
        text: &str,
        may_change: impl FnOnce(&OptionRow) -> bool,
    ) -> Result<(), Unchanged> {
        self.change_by(ORIGIN, name, text, may_change)
    }

    /// Sets the limit of one device, or with `none` takes it away, so that the option
    /// `limit` counts there.
    ///
    /// # Errors
    /// [`Unchanged`].
    pub fn change_limit_of(&mut self, device: u32, text: &str) -> Result<(), Unchanged> {
        let limit = limit(text.trim()).ok_or(Unchanged::Unreadable)?;
        let mut limits = self.settings.config.device_limits.clone();
        limits.retain(|(known, _)| *known != device);
        limits.extend(limit.map(|limit| (device, limit)));
        limits.sort_by_key(|(device, _)| *device);
        self.change("device_limits", &show_device_limits(&limits), |_| true)
    }

    /// As `change`, with another origin for the echo.
    ///
    /// # Errors
    /// [`Unchanged`].
    pub fn change_by(
        &mut self,
        origin: &str,
        name: &str,
        text: &str,
        may_change: impl FnOnce(&OptionRow) -> bool,
    ) -> Result<(), Unchanged> {
        let row = find(name).ok_or(Unchanged::Unknown)?;
        let target = row.target();
        if matches!(target.role, Role::NoEffect(_)) || !may_change(target) {
            return Err(Unchanged::Fixed);
        }
        let mut settings = self.settings.clone();
        match read(row, &mut settings, text.trim()) {
            Reading::Unreadable => return Err(Unchanged::Unreadable),
            Reading::Kept => return Ok(()),
            Reading::Set => {}
        }
        if OPTIONS
            .iter()
            .any(|row| row.late && !stands(row, &settings))
        {
            return Err(Unchanged::Unreadable);
        }
        let mut changed = vec![target];
        if target.key == "limit" && !settings.config.device_limits.is_empty() {
            // Who sets a limit now means every device.
            settings.config.device_limits.clear();
            changed.extend(find("device_limits"));
        }
        self.settings = settings;
        for row in changed {
            if let Some(option) = self.echo.iter_mut().find(|option| option.key == row.key) {
                option.value = row.show(&self.settings);
                option.origin = origin.to_owned();
            }
        }
        // Another option's value may be why one had no effect, or has none now.
        for option in &mut self.echo {
            if let Some(row) = find(option.key)
                && !matches!(row.role, Role::NoEffect(_))
            {
                let is_given = option.origin != DEFAULT;
                option.no_effect = is_given.then(|| (row.idle)(&self.settings)).flatten();
            }
        }
        Ok(())
    }
}

/// Whether the option accepts its value in these settings.
fn stands(row: &'static OptionRow, settings: &Settings) -> bool {
    read(row, &mut settings.clone(), &row.show(settings)) != Reading::Unreadable
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Bytes;
    use crate::config::{DeviceShare, Host, load};

    #[test]
    fn a_change_is_echoed_with_its_origin() {
        let mut loaded = load([], Host::default());
        assert_eq!(loaded.change("limit", " 2G ", |_| true), Ok(()));
        let limit = Some(DeviceShare::Bytes(Bytes::gib(2)));
        assert_eq!(loaded.settings.config.limit, limit);
        assert_eq!(loaded.value("limit").as_deref(), Some("2GiB"));
        let echo = loaded.echo.iter().find(|option| option.key == "limit");
        assert_eq!(echo.map(|option| option.origin.as_str()), Some(ORIGIN));
        // Another name of the same option.
        let by_paddle = loaded.change("gpu_memory_limit_mb", "512", |row| row.key == "limit");
        assert_eq!(by_paddle, Ok(()));
        assert_eq!(loaded.value("limit").as_deref(), Some("512MiB"));
    }

    #[test]
    fn what_has_no_effect_is_said_as_long_as_it_is_so() {
        let mut loaded = load([], Host::default());
        let mut no_effect = |key: &str, name, text| {
            assert_eq!(loaded.change(name, text, |_| true), Ok(()));
            let option = loaded.echo.iter().find(|option| option.key == key);
            option.unwrap().no_effect.is_some()
        };
        assert!(no_effect("limit", "limit", "1"));
        assert!(!no_effect("limit", "limit", "2G"));
        assert!(!no_effect("decay_ms", "decay_ms", "100"));
        assert!(no_effect("decay_ms", "strategy", "passthrough"));
        assert!(!no_effect("decay_ms", "strategy", "auto_growth"));
    }

    #[test]
    fn a_device_has_a_limit_of_its_own_as_long_as_it_is_said() {
        let mut loaded = load([], Host::default());
        assert_eq!(loaded.change_limit_of(1, "2G"), Ok(()));
        assert_eq!(loaded.change_limit_of(0, " 50% "), Ok(()));
        assert_eq!(loaded.change_limit_of(1, "3G"), Ok(()));
        let told = loaded.value("device_limits");
        assert_eq!(told.as_deref(), Some("[0:0.5,1:3GiB]"));
        for bad in ["", "3", "3Q", "-1G"] {
            let refused = Err(Unchanged::Unreadable);
            assert_eq!(loaded.change_limit_of(1, bad), refused, "{bad}");
        }
        assert_eq!(loaded.change_limit_of(0, "none"), Ok(()));
        assert_eq!(loaded.change_limit_of(7, "none"), Ok(()));
        assert_eq!(loaded.value("device_limits").as_deref(), Some("[1:3GiB]"));
        assert_eq!(loaded.change_limit_of(1, "none"), Ok(()));
        assert_eq!(loaded.value("device_limits").as_deref(), Some("none"));
    }

    #[test]
    fn what_cannot_be_changed_stays() {
        let loaded = load([], Host::default());
        let mut changed = loaded.clone();
        let mut change = |name, text, may| changed.change(name, text, |_| may);
        assert_eq!(change("limits", "2G", true), Err(Unchanged::Unknown));
        assert_eq!(change("limit", "2Q", true), Err(Unchanged::Unreadable));
        assert_eq!(change("limit", "2G", false), Err(Unchanged::Fixed));
        let idle = change("pinned_free_catch_all", "True", true);
        assert_eq!(idle, Err(Unchanged::Fixed));
        assert_eq!(changed, loaded);
        assert_eq!(loaded.value("limits"), None);
    }

    #[test]
    fn what_depends_on_an_option_holds_it() {
        let mut loaded = load([], Host::default());
        let mut change = |name, text| loaded.change(name, text, |_| true);
        assert_eq!(change("max_split_size_mb", "32"), Ok(()));
        let larger = change("large_segment_size_mb", "64");
        assert_eq!(larger, Err(Unchanged::Unreadable));
        assert_eq!(change("large_segment_size_mb", "32"), Ok(()));
        let smaller = change("max_split_size_mb", "31");
        assert_eq!(smaller, Err(Unchanged::Unreadable));
        assert_eq!(loaded.value("large_segment_size_mb").as_deref(), Some("32"));
    }
}
