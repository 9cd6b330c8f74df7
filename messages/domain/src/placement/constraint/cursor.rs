//! A reader of the words and signs of a constraint, from left to right.

use super::ConstraintError;
use madako_json::strict::tree::shown_text;

/// A position in a text. Only space and tab separate words, as in Krake; other white space counts as part of a word,
/// and the rules of words refuse it.
pub struct Cursor<'a> {
    text: &'a str,
    /// Offset in bytes, always between two characters.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn unread_text(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        let rest = self.unread_text();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    /// The next word, without reading it; empty before a sign or the end.
    pub(super) fn peek_word(&mut self) -> &'a str {
        self.skip_blanks();
        let rest = self.unread_text();
        &rest[..rest.find(is_end_of_word).unwrap_or(rest.len())]
    }

    /// Reads this number of bytes of the peeked word.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads the literal if it comes next. It may be a sign, a word or the beginning of a word.
    pub(super) fn skip_literal(&mut self, literal: &str) -> bool {
        self.skip_blanks();
        let there = self.unread_text().starts_with(literal);
        if there {
            self.at += literal.len();
        }
        there
    }

    /// Reads the word if it comes next as a whole.
    pub(super) fn skip_word(&mut self, word: &str) -> bool {
        let there = self.peek_word() == word;
        if there {
            self.advance(word.len());
        }
        there
    }

    /// The position behind this number of bytes of the peeked word.
    pub(super) fn skip_bytes(&self, bytes: usize) -> Self {
        Self { text: self.text, at: self.at + bytes }
    }

    /// Reads a word that satisfies a rule.
    pub(super) fn read_word(
        &mut self,
        rule: impl FnOnce(&str) -> bool,
        expected: &'static str,
    ) -> Result<&'a str, ConstraintError> {
        let word = self.peek_word();
        if !rule(word) {
            return Err(self.error_at_cursor(expected));
        }
        self.advance(word.len());
        Ok(word)
    }

    /// `Ok` when only blanks are left.
    pub(super) fn expect_end(&mut self) -> Result<(), ConstraintError> {
        self.skip_blanks();
        if self.unread_text().is_empty() {
            Ok(())
        } else {
            Err(self.error_at_cursor("the end of the constraint"))
        }
    }

    pub(super) fn error_at_cursor(&mut self, expected: &'static str) -> ConstraintError {
        let word = self.peek_word();
        let got = match self.unread_text().chars().next() {
            None => "the end".to_owned(),
            Some(sign) if word.is_empty() => format!("{:?}", sign.to_string()),
            Some(_) => shown_text(word),
        };
        ConstraintError { column: self.text[..self.at].chars().count() + 1, got, expected }
    }
}

fn is_end_of_word(c: char) -> bool {
    matches!(c, ' ' | '\t' | ',' | '(' | ')' | '=' | '!' | '<' | '>')
}
