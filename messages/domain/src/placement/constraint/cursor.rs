//! Reads words and signs of a constraint from left to right, and says where it stopped.

use super::ConstraintError;
use madako_json::strict::tree::shown_text;

/// A place in a text. Only space and tab separate words, as in Krake; other white space belongs to words
/// and is refused there.
pub struct Cursor<'a> {
    text: &'a str,
    /// In bytes, always between two characters.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// The next word, which is not read by this; empty before a sign or the end.
    pub(super) fn peek_word(&mut self) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();
        &rest[..rest.find(ends_word).unwrap_or(rest.len())]
    }

    /// Reads that many bytes of the word that was peeked at.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads the literal, if it comes next. It may be a sign, a word or the beginning of a word.
    pub(super) fn eat(&mut self, literal: &str) -> bool {
        self.skip_blanks();
        let there = self.rest().starts_with(literal);
        if there {
            self.at += literal.len();
        }
        there
    }

    /// Reads the word, if it comes next as a whole.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let there = self.peek_word() == word;
        if there {
            self.advance(word.len());
        }
        there
    }

    /// The place behind that many bytes of the word that was peeked at.
    pub(super) fn after(&self, bytes: usize) -> Self {
        Self { text: self.text, at: self.at + bytes }
    }

    /// Reads a word that keeps a rule.
    pub(super) fn word(
        &mut self,
        rule: impl FnOnce(&str) -> bool,
        expected: &'static str,
    ) -> Result<&'a str, ConstraintError> {
        let word = self.peek_word();
        if !rule(word) {
            return Err(self.error(expected));
        }
        self.advance(word.len());
        Ok(word)
    }

    /// `Ok` when nothing but blanks is left.
    pub(super) fn end(&mut self) -> Result<(), ConstraintError> {
        self.skip_blanks();
        if self.rest().is_empty() { Ok(()) } else { Err(self.error("the end of the constraint")) }
    }

    /// What comes next is not what was expected.
    pub(super) fn error(&mut self, expected: &'static str) -> ConstraintError {
        let word = self.peek_word();
        let got = match self.rest().chars().next() {
            None => "the end".to_owned(),
            Some(sign) if word.is_empty() => format!("{:?}", sign.to_string()),
            Some(_) => shown_text(word),
        };
        ConstraintError { column: self.text[..self.at].chars().count() + 1, got, expected }
    }
}

fn ends_word(c: char) -> bool {
    matches!(c, ' ' | '\t' | ',' | '(' | ')' | '=' | '!' | '<' | '>')
}
