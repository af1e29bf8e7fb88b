//! The sizes that every kernel shares, and how value heads find their key head.

/// Key rows and value columns of a head's state.
pub const HEAD_DIM: usize = 128;

/// The most value heads per key head that kernels with a compile-time count are compiled for.
pub const MOST_VALUES_PER_KEY: usize = 4;

/// `head_map` of a kernel's arguments: value head h reads key head h / (value heads per key head).
pub const GROUPED: u32 = 0;

/// `head_map` of a kernel's arguments: value head h reads key head h % (number of key heads).
pub const TILED: u32 = 1;

/// The value head that is number `index` of the `values_per_key` ones that read `key_head`.
#[inline(always)]
pub fn value_head(key_head: u32, index: u32, values_per_key: u32, num_key_heads: u32, head_map: u32) -> u32 {
    if head_map == TILED { key_head + index * num_key_heads } else { key_head * values_per_key + index }
}

/// The key head that `value_head` reads.
#[inline(always)]
pub fn key_head(value_head: u32, values_per_key: u32, num_key_heads: u32, head_map: u32) -> u32 {
    if head_map == TILED { value_head % num_key_heads } else { value_head / values_per_key }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_maps_agree() {
        for head_map in [GROUPED, TILED] {
            for (num_key_heads, values_per_key) in [(1, 1), (2, 3), (16, 3), (5, 4)] {
                let mut seen = vec![0; (num_key_heads * values_per_key) as usize];
                for key in 0..num_key_heads {
                    for index in 0..values_per_key {
                        let value = value_head(key, index, values_per_key, num_key_heads, head_map);
                        assert_eq!(key_head(value, values_per_key, num_key_heads, head_map), key);
                        seen[value as usize] += 1;
                    }
                }
                assert!(seen.iter().all(|&count| count == 1));
            }
        }
    }
}
