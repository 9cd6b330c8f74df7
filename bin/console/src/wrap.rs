//! Breaks text into lines of a given width.

/// Columns of a terminal whose width is not known.
pub const USUAL_WIDTH: usize = 80;

/// Adds words in lines of at most `width` characters, if no word is longer. The first line begins with `first`, the others
/// with `indent` spaces.
pub fn push_wrapped(text: &mut String, first: &str, words: &str, indent: usize, width: usize) {
    let mut line = first.to_owned();
    let mut is_begin = true;
    for word in words.split(' ') {
        if !is_begin && line.chars().count() + 1 + word.chars().count() > width {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            is_begin = true;
        }
        if !is_begin {
            line.push(' ');
        }
        line.push_str(word);
        is_begin = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// The number with its noun, such as `1 node` or `2 nodes`.
#[must_use]
pub fn count_with_noun(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// The text with spaces in words of more than `width` characters, such as the names of images, so that each line fits.
#[must_use]
pub(crate) fn break_words(text: &str, width: usize) -> String {
    let parts = |word: &str| {
        let characters: Vec<char> = word.chars().collect();
        let parts = characters.chunks(width.max(1)).map(|part| part.iter().collect::<String>());
        parts.collect::<Vec<_>>().join(" ")
    };
    text.split(' ').map(parts).collect::<Vec<_>>().join(" ")
}

/// The text in at most `width` characters; an ellipsis takes the place of a cut end.
#[must_use]
pub fn cut_to_width(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_the_first_are_indented_and_fit() {
        let mut text = String::new();
        push_wrapped(&mut text, "! ", "one two three four", 4, 11);
        assert_eq!(text, "! one two\n    three\n    four\n");
    }

    #[test]
    fn a_word_longer_than_a_line_is_broken() {
        assert_eq!(break_words("on größer als  x", 4), "on größ er als  x");
        let mut text = String::new();
        push_wrapped(&mut text, "", &break_words("of registry/image", 9), 0, 9);
        assert_eq!(text, "of\nregistry/\nimage\n");
    }

    #[test]
    fn a_cut_text_ends_with_an_ellipsis() {
        assert_eq!(
            (cut_to_width("größer", 6), cut_to_width("größer", 5)),
            ("größer".to_owned(), "größ…".to_owned())
        );
    }
}
