//! What words mean that only we use: each is explained once, below the text in
//! which it stands.

use std::collections::BTreeSet;

use super::lines::Lines;

/// A word, the forms in which it stands in a text, and what it means.
struct Gloss {
    word: &'static str,
    forms: &'static [&'static str],
    means: &'static str,
}

const fn gloss(word: &'static str, forms: &'static [&'static str], means: &'static str) -> Gloss {
    Gloss { word, forms, means }
}

const WORDS: &[Gloss] = &[
    gloss(
        "bad free",
        &["bad free", "bad frees"],
        "a free of an address at which no block was live",
    ),
    gloss(
        "cached",
        &["cached", "CACHED"],
        "free, kept to be handed out again",
    ),
    gloss(
        "chunk",
        &["chunk", "chunks"],
        "memory that the driver gave in one call; blocks are cut from it",
    ),
    gloss(
        "direct",
        &["direct"],
        "a request that went to the driver, because of the strategy or its size",
    ),
    gloss(
        "door",
        &["door", "doors"],
        "a CUDA function by which calls of the program reach the library",
    ),
    gloss(
        "epoch",
        &["epoch", "epochs"],
        "a batch of freed memory behind one fence",
    ),
    gloss(
        "fence",
        &["fence", "fences"],
        "a mark in the device's work; what was freed before it can be used again after it",
    ),
    gloss(
        "hit",
        &["hit", "hits"],
        "a request that cached memory served, without the driver",
    ),
    gloss(
        "lane",
        &["lane", "lanes"],
        "a pool of one stream, for programs that name their streams",
    ),
    gloss(
        "limbo",
        &["limbo", "LIMBO"],
        "freed by the program, and perhaps still in use by the device",
    ),
    gloss("live", &["live", "LIVE"], "held by the program"),
    gloss(
        "miss",
        &["miss", "misses"],
        "a request for which the driver was called for memory",
    ),
    gloss(
        "past the pool",
        &["past the pool", "PAST POOL"],
        "what CUDA itself gave: by cudaMallocAsync, cuMemCreate and the like",
    ),
    gloss(
        "paused",
        &["paused", "PAUSED"],
        "given to the device, with its addresses kept, until the program resumes it",
    ),
    gloss(
        "reserved",
        &["reserved", "RESERVED"],
        "what the driver gave for the pool: live, cached and limbo together",
    ),
    gloss(
        "slab",
        &["slab", "slabs"],
        "a chunk of 2 MiB for small requests",
    ),
];

/// Explains the words of a text below it.
pub(super) fn explain(out: &mut Lines) {
    let text = out.text.clone();
    explain_words_of(&text, out);
}

/// Explains the words of one text below another.
pub(super) fn explain_words_of(text: &str, out: &mut Lines) {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = text.split(|c| !inside(c)).collect();
    let known: BTreeSet<&str> = words.iter().copied().collect();
    let stands = |form: &&str| {
        let parts: Vec<&str> = form.split(' ').collect();
        match parts.as_slice() {
            [word] => known.contains(word),
            _ => words.windows(parts.len()).any(|words| words == parts),
        }
    };
    let found = WORDS.iter().filter(|gloss| gloss.forms.iter().any(&stands));
    let found: Vec<&Gloss> = found.collect();
    if found.is_empty() {
        return;
    }
    out.exact("");
    out.heading("words");
    for gloss in found {
        out.fact(gloss.word, gloss.means);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_stand_there_are_explained_and_no_others() {
        let explained = |text: &str| {
            let mut out = Lines::wide(80);
            out.exact(text);
            explain(&mut out);
            let lines = out.text.lines().skip(3);
            lines
                .map(|line| line.get(2..18).unwrap_or_default().trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
        };
        assert_eq!(explained("3 epochs, 5 B in limbo"), ["epoch", "limbo"]);
        assert_eq!(explained("went past the pool."), ["past the pool"]);
        assert!(explained("limbo_budget: the pool, delivered, a pastime").is_empty());
    }
}
