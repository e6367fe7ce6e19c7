//! The user id that stands for all users without an id in the service's user namespace.
//!
//! Linux reports each user that a user namespace does not map as the overflow user, usually 65534. Such users cannot be told
//! apart, so a service in such a namespace must not take that id for a user: a stranger would get what was granted to another.

/// Numbers of user ids in a namespace that maps them all. The id -1 means no user.
const ALL_USERS: u64 = u32::MAX as u64;
/// The overflow user where Linux does not say it.
const USUAL: u32 = 65_534;

/// Whether the overflow user is a user, or may be anyone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverflowUser {
    /// `None` where every user has an id.
    ambiguous: Option<u32>,
}

impl OverflowUser {
    /// Reads the state of this process. The sandbox forbids that later. Where /proc is missing, the usual id is ambiguous.
    pub(crate) fn of_this_process() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map");
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        Self::from_proc(&map.unwrap_or_default(), &overflow.unwrap_or_default())
    }

    /// From the contents of `/proc/self/uid_map` and `/proc/sys/kernel/overflowuid`.
    fn from_proc(map: &str, overflow: &str) -> Self {
        let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
        // Ranges do not overlap (user_namespaces(7)), so their lengths add up to the number of users that have an id.
        let mapped: u64 = map.lines().filter_map(count).fold(0, u64::saturating_add);
        let overflow = overflow.trim().parse().unwrap_or(USUAL);
        Self { ambiguous: (mapped < ALL_USERS).then_some(overflow) }
    }

    /// Whether `user` may be anyone.
    pub(crate) fn refuses(self, user: u32) -> bool {
        self.ambiguous == Some(user)
    }

    /// Why `user` is refused, and what to do.
    pub(crate) fn reason(user: u32) -> String {
        format!(
            "user {user} stands for every user without an id in the service's user namespace, so it is nobody in particular; \
             map the user there, or run the service outside that namespace"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_user_is_refused_where_ids_are_missing() {
        let initial = "         0          0 4294967295\n";
        let pieces = "0 0 65536\n65536 65536 4294901759\n";
        for map in [initial, pieces] {
            assert!(!OverflowUser::from_proc(map, "65534\n").refuses(65_534), "{map}");
        }
        let rootless = "0 1000 1\n1 100000 65536\n";
        for map in [rootless, "0 0 1\n", "", "0 0 many\n", "0 0 4294967294\n"] {
            let refusing = OverflowUser::from_proc(map, "65534\n");
            assert!(refusing.refuses(65_534) && !refusing.refuses(0) && !refusing.refuses(1000), "{map}");
            assert!(OverflowUser::from_proc(map, "99\n").refuses(99), "{map}");
            assert!(OverflowUser::from_proc(map, "").refuses(USUAL), "{map}");
        }
    }

    #[test]
    fn this_process_can_be_read() {
        let own = OverflowUser::of_this_process();
        let maps_all = std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295");
        assert_eq!(own.ambiguous.is_none(), maps_all);
    }
}
