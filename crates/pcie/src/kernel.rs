//! What a release of Linux says of what its kernel can do, and what it leaves open.

use std::fmt;

/// A version of Linux, as far as anything asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The newest kernel whose source was read for the rules here.
pub const NEWEST_READ: Version = Version(7, 3);

/// A running kernel by its release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// The version in it.
    pub version: Version,
    /// The third number, 0 if there is none.
    pub patch: u32,
    /// Whether it is one of those that carry later features under an old number.
    pub backports: bool,
}

impl Kernel {
    /// Reads `6.12.48+deb13-amd64`.
    pub fn new(release: &str) -> Option<Kernel> {
        let mut numbers = release.split(['.', '-', '+', '_']);
        let version = Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let patch = numbers.next().and_then(|patch| patch.parse().ok()).unwrap_or(0);
        let marks =
            [".el", "-nvidia", ".amzn", "-azure", "-gke", "-oracle", "-aws", ".oe", "default"];
        let backports = marks.iter().any(|mark| release.contains(mark));
        Some(Kernel { release: release.to_owned(), version, patch, backports })
    }

    /// Whether it has something that came with `since` and was in none before `not_before`; `None`
    /// if its number does not tell.
    pub fn has(&self, since: Version, not_before: Version) -> Option<bool> {
        match self.version {
            version if version >= since => Some(true),
            version if version < not_before && !self.backports => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions() {
        for (release, expected) in [
            ("6.12.48+deb13-amd64", Some((Version(6, 12), 48, false))),
            ("5.14.0-427.el9.x86_64", Some((Version(5, 14), 0, true))),
            ("7.2", Some((Version(7, 2), 0, false))),
            ("6.8.0-1015-nvidia-64k", Some((Version(6, 8), 0, true))),
            ("next", None),
            ("", None),
        ] {
            let kernel = Kernel::new(release).map(|k| (k.version, k.patch, k.backports));
            assert_eq!(kernel, expected, "{release}");
        }
        assert!(Version(6, 9) < Version(6, 12) && Version(6, 18) < Version(7, 0));
    }

    #[test]
    fn old_numbers_of_enterprise_kernels_say_nothing() {
        let has = |release| Kernel::new(release).unwrap().has(Version(6, 12), Version(6, 2));
        assert_eq!(has("6.13.1"), Some(true));
        assert_eq!(has("6.1.0-9-cloud-amd64"), Some(false));
        assert_eq!(has("6.5.0"), None);
        assert_eq!(has("5.14.0-427.el9.x86_64"), None);
    }
}
