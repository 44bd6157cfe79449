//! Groups: several buffers packed into few allocations, by the rules with which
//! Paddle fuses the gradients of parameters.
//!
//! Buffers come in *layers*, which stay together. The result is a pure function
//! of the sizes, the layers and the options, in time linear in the members.

use std::collections::HashMap;

use crate::address::Bytes;
use crate::config::GroupConfig;

/// Members start at multiples of this in their allocation, and are padded to
/// it.
pub const ALIGNMENT: Bytes = Bytes::new(256);

/// The layer of a member.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
enum Layer<'a> {
    /// The part of the member's name up to its first dot, or all of it.
    Named(&'a str),
    /// A number that the caller gave.
    Numbered(u64),
}

/// A requested buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// Its size, before padding.
    pub size: Bytes,
    /// Its name, if it has one.
    pub name: Option<&'a str>,
    /// The number of its layer, for a member without a name.
    pub layer: u64,
}

impl<'a> Member<'a> {
    fn layer(&self) -> Layer<'a> {
        match self.name {
            Some(name) => Layer::Named(name.split('.').next().unwrap_or(name)),
            None => Layer::Numbered(self.layer),
        }
    }
}

/// One allocation and the members in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pack {
    /// Bytes of all members, each padded.
    pub size: Bytes,
    /// The members, by their index in the request, and their offset in the
    /// allocation.
    pub members: Vec<(usize, Bytes)>,
}

/// Packs members into allocations. Returns `None` if a sum of sizes overflows.
#[must_use]
pub fn pack(members: &[Member<'_>], config: GroupConfig) -> Option<Vec<Pack>> {
    if config.least_mib == 0.0 {
        // Paddle sorts them by name; members without a name stay in order, in
        // front.
        let mut all: Vec<usize> = (0..members.len()).collect();
        all.sort_by_key(|&at| members[at].name);
        return Some(vec![lay_out(members, &all)?]);
    }
    let mut packs = Vec::new();
    let mut layers = layers(members).into_iter();
    let size = |layer: &[usize]| {
        let sizes = layer.iter().map(|&at| members[at].size);
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    };
    while let Some(mut chosen) = layers.next() {
        let mut sum = size(&chosen);
        while !is_full(chosen.len(), sum, config) {
            let Some(next) = layers.next() else { break };
            sum = sum.saturating_add(size(&next));
            chosen.extend(next);
        }
        packs.push(lay_out(members, &chosen)?);
    }
    Some(packs)
}

/// The members of each layer, in the order in which the layers first appear.
fn layers(members: &[Member<'_>]) -> Vec<Vec<usize>> {
    let mut layers: Vec<Vec<usize>> = Vec::new();
    let mut places = HashMap::new();
    for (at, member) in members.iter().enumerate() {
        let place = *places.entry(member.layer()).or_insert(layers.len());
        match layers.get_mut(place) {
            Some(layer) => layer.push(at),
            None => layers.push(vec![at]),
        }
    }
    layers
}

/// Whether the group takes no further layer: it has more members than the bound
/// (a bound of 1 or less is none), or at least the configured memory, without
/// padding.
fn is_full(members: usize, sum: Bytes, config: GroupConfig) -> bool {
    if config.least_mib < 0.0 {
        return true;
    }
    let most = usize::try_from(config.most_members).unwrap_or(0);
    #[allow(clippy::cast_precision_loss, reason = "as Paddle compares them")]
    let mib = sum.get() as f64 / f64::from(1 << 20);
    (most > 1 && members > most) || mib >= config.least_mib
}

fn lay_out(members: &[Member<'_>], chosen: &[usize]) -> Option<Pack> {
    let mut pack = Pack::default();
    for &at in chosen {
        pack.members.push((at, pack.size));
        let padded = members[at].size.round_up(ALIGNMENT)?;
        pack.size = pack.size.checked_add(padded)?;
    }
    Some(pack)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config(most_members: i32, least_mib: f64) -> GroupConfig {
        GroupConfig {
            most_members,
            least_mib,
        }
    }

    fn named(members: &[(&'static str, u64)]) -> Vec<Member<'static>> {
        members
            .iter()
            .map(|&(name, size)| Member {
                size: Bytes::new(size),
                name: Some(name),
                layer: 0,
            })
            .collect()
    }

    /// The members of each allocation.
    fn packs(members: &[Member<'_>], config: GroupConfig) -> Vec<Vec<usize>> {
        let packs = pack(members, config).unwrap();
        let members = |pack: &Pack| pack.members.iter().map(|&(at, _)| at).collect();
        packs.iter().map(members).collect()
    }

    /// Each layer has two tensors; those of the second layer are not
    /// neighbours.
    fn network() -> Vec<Member<'static>> {
        named(&[
            ("conv.w", 3 * MIB),
            ("norm.scale", 100),
            ("conv.b", 1000),
            ("head.w", 2 * MIB),
            ("norm.bias", 100),
            ("bare", 7),
        ])
    }

    #[test]
    fn a_negative_size_makes_a_group_of_each_layer() {
        let expected = [vec![0, 2], vec![1, 4], vec![3], vec![5]];
        assert_eq!(packs(&network(), config(3, -1.0)), expected);
        assert_eq!(packs(&network(), GroupConfig::default()), expected);
    }

    #[test]
    fn zero_makes_one_group_sorted_by_name() {
        let expected = [vec![5, 2, 0, 3, 4, 1]];
        assert_eq!(packs(&network(), config(1, 0.0)), expected);
    }

    #[test]
    fn layers_are_added_until_there_is_enough_memory() {
        // The bound is tested after a layer was added: 3 MiB are more than 1.
        let expected = [vec![0, 2], vec![1, 4, 3], vec![5]];
        assert_eq!(packs(&network(), config(1, 1.0)), expected);
        let expected = [vec![0, 2, 1, 4, 3], vec![5]];
        assert_eq!(packs(&network(), config(1, 4.5)), expected);
        let all = [vec![0, 2, 1, 4, 3, 5]];
        assert_eq!(packs(&network(), config(1, 100.0)), all);
        // A sum equal to the bound is enough; padding does not count.
        let members = named(&[("a", MIB - 1), ("b", 1), ("c", 1)]);
        assert_eq!(packs(&members, config(1, 1.0)), [vec![0, 1], vec![2]]);
    }

    #[test]
    fn more_members_than_the_bound_end_a_group() {
        let members = named(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]);
        let expected = [vec![0, 1, 2], vec![3, 4]];
        assert_eq!(packs(&members, config(2, 100.0)), expected);
        // A bound of 1 or less is none.
        let all = [vec![0, 1, 2, 3, 4]];
        for unbounded in [1, 0, -1, i32::MIN] {
            assert_eq!(packs(&members, config(unbounded, 100.0)), all);
        }
        // A layer is not split for the bound.
        let members = named(&[("a.1", 1), ("a.2", 1), ("a.3", 1), ("a.4", 1), ("b", 1)]);
        let expected = [vec![0, 1, 2, 3], vec![4]];
        assert_eq!(packs(&members, config(2, 100.0)), expected);
    }

    #[test]
    fn members_without_a_name_have_the_layers_that_they_are_given() {
        let members: Vec<Member<'_>> = [7, 9, 7]
            .into_iter()
            .map(|layer| Member {
                size: Bytes::new(1),
                name: None,
                layer,
            })
            .collect();
        assert_eq!(packs(&members, config(1, -1.0)), [vec![0, 2], vec![1]]);
        assert_eq!(packs(&members, config(1, 0.0)), [vec![0, 1, 2]]);
        assert!(packs(&[], config(1, -1.0)).is_empty());
    }

    #[test]
    fn members_start_at_multiples_of_256() {
        let members = named(&[("a", 1), ("b", 256), ("c", 257), ("d", 5)]);
        let packs = pack(&members, config(1, 0.0)).unwrap();
        let starts: Vec<u64> = packs[0].members.iter().map(|(_, at)| at.get()).collect();
        assert_eq!(starts, [0, 256, 512, 1024]);
        assert_eq!(packs[0].size, Bytes::new(1280));
    }

    #[test]
    fn sizes_beyond_all_memory_are_refused() {
        let members = named(&[("a", u64::MAX), ("b", 1)]);
        assert_eq!(pack(&members, config(1, 0.0)), None);
        let members = named(&[("a", u64::MAX - 255), ("b", 300)]);
        assert_eq!(pack(&members, config(1, 0.0)), None);
    }
}
