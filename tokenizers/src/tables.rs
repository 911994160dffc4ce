//! Reads the two tables of a BPE model straight into the form that its builder takes.
//!
//! The crate's own loader buffers the half million merges of a large vocabulary in a generic value
//! first, which is most of its peak.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokenizers::models::bpe::Vocab;

/// Pieces with their ids; `None` for the list form that other model types use.
#[derive(Default)]
pub struct Vocabulary(pub Option<Vocab>);

impl Vocabulary {
    /// One more than the largest id.
    pub fn size(&self) -> u32 {
        let ids = self.0.iter().flat_map(|vocab| vocab.values());
        ids.max().map_or(0, |id| id.saturating_add(1))
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocabulary;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut vocab = Vocab::new();
                while let Some((piece, id)) = map.next_entry::<String, u32>()? {
                    vocab.insert(piece, id);
                }
                Ok(Vocabulary(Some(vocab)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocabulary(None))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// Merges as pairs, from both spellings of the file: `["a", "b"]` and `"a b"`.
#[derive(Default)]
pub struct Merges(pub Vec<(String, String)>);

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
                let mut merges = Vec::new();
                while let Some(Merge(left, right)) = seq.next_element()? {
                    merges.push((left, right));
                }
                merges.shrink_to_fit();
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two pieces, or one string with a space between them")
            }
            fn visit_str<E: Error>(self, line: &str) -> Result<Merge, E> {
                match line.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.to_owned(), right.to_owned()))
                    }
                    _ => Err(E::custom(format!("the merge {line:?} is not two pieces"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                match (
                    seq.next_element()?,
                    seq.next_element()?,
                    seq.next_element::<IgnoredAny>()?,
                ) {
                    (Some(left), Some(right), None) => Ok(Merge(left, right)),
                    _ => Err(A::Error::custom("a merge must have exactly two pieces")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}
