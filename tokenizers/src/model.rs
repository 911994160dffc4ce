//! Turns text into ids with the parts of one `tokenizer.json`, and refuses every other kind of file.
//!
//! Added tokens are handed back as data and never matched here: the caller decides which text may
//! become a control token, and what it passes to `encode` is text only.

use std::fs;

use serde::Deserialize;
use serde_json::{json, value::RawValue, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::tokenizer::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer,
};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use crate::tables::{Merges, Vocabulary};

/// Words that a thread remembers; a chat repeats few more.
const CACHE_WORDS: usize = 4096;

#[derive(Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<Value>,
    model: ModelFile,
}

#[derive(Deserialize)]
struct ModelFile {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    vocab: Vocabulary,
    #[serde(default)]
    merges: Merges,
}

/// One tokenizer file, ready to encode.
pub struct Tokenizer {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: BPE,
    /// Everything of the file but its tables, as JSON.
    pub description: String,
    /// One more than the largest id of the model's own pieces.
    pub model_size: u32,
}

impl Tokenizer {
    pub fn open(path: &str) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let file: File = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let description = describe(&file)?;
        let normalizer = component("normalizer", file.normalizer)?;
        let pre_tokenizer = component("pre_tokenizer", file.pre_tokenizer)?;
        let model_file = file.model;
        // The text of the file is a large part of the peak; the model is built without it.
        drop(bytes);
        let model_size = model_file.vocab.size();
        Ok(Self {
            normalizer,
            pre_tokenizer,
            model: build_model(model_file)?,
            description,
            model_size,
        })
    }

    /// Appends the ids of `text` to `ids`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer
                .normalize(&mut normalized)
                .map_err(|error| error.to_string())?;
        }
        let Some(pre_tokenizer) = &self.pre_tokenizer else {
            return self.encode_word(normalized.get(), ids);
        };
        let mut words = PreTokenizedString::from(normalized);
        pre_tokenizer
            .pre_tokenize(&mut words)
            .map_err(|error| error.to_string())?;
        for (word, _, _) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            self.encode_word(word, ids)?;
        }
        Ok(())
    }

    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let tokens = self
            .model
            .tokenize(word)
            .map_err(|error| error.to_string())?;
        ids.extend(tokens.iter().map(|token| token.id));
        Ok(())
    }

    pub fn piece(&self, id: u32) -> Option<String> {
        self.model.id_to_token(id)
    }

    pub fn id(&self, piece: &str) -> Option<u32> {
        self.model.token_to_id(piece)
    }
}

fn component<T>(name: &str, text: Option<&RawValue>) -> Result<Option<T>, String>
where
    T: for<'de> Deserialize<'de>,
{
    match text {
        Some(raw) if raw.get() != "null" => serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|error| format!("its {name} is not a known one: {error}")),
        _ => Ok(None),
    }
}

fn describe(file: &File) -> Result<String, String> {
    let parse = |text: Option<&RawValue>| match text {
        Some(raw) => serde_json::from_str(raw.get()).map_err(|error| error.to_string()),
        None => Ok(Value::Null),
    };
    let description = json!({
        "normalizer": parse(file.normalizer)?,
        "pre_tokenizer": parse(file.pre_tokenizer)?,
        "decoder": file.decoder,
        "model": {
            "type": file.model.kind.as_deref().unwrap_or("BPE"),
            "byte_fallback": file.model.byte_fallback,
            "unk_token": file.model.unk_token,
        },
        "added_tokens": file.added_tokens,
    });
    Ok(description.to_string())
}

fn build_model(file: ModelFile) -> Result<BPE, String> {
    if let Some(kind) = file.kind.as_deref().filter(|kind| *kind != "BPE") {
        return Err(format!("its model is {kind}; only BPE is supported"));
    }
    if file.dropout.unwrap_or(0.0) != 0.0 {
        return Err("its model has a dropout, which makes encoding random".to_owned());
    }
    let vocab = file.vocab.0.ok_or("its model has no vocabulary")?;
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, file.merges.0)
        .cache_capacity(CACHE_WORDS)
        .fuse_unk(file.fuse_unk)
        .byte_fallback(file.byte_fallback)
        .ignore_merges(file.ignore_merges);
    if let Some(unk) = file.unk_token {
        builder = builder.unk_token(unk);
    }
    if let Some(prefix) = file
        .continuing_subword_prefix
        .filter(|text| !text.is_empty())
    {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = file.end_of_word_suffix.filter(|text| !text.is_empty()) {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder.build().map_err(|error| error.to_string())
}
