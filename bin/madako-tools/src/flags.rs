//! Command lines in the form that Go's programs read: `-x=v`, `--x=v`, `-x v` and `--x v`.
//!
//! Every flag takes a value; the last of several values counts. Words that are not flags may stand anywhere. After `--`
//! no word is a flag.

use std::collections::BTreeMap;

/// The failure of a tool.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for help.
    Help,
    /// The command line is wrong.
    Usage(String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags<'a> {
    values: BTreeMap<&'static str, &'a str>,
    /// The words that are not flags.
    pub(crate) words: Vec<&'a str>,
}

impl<'a> Flags<'a> {
    /// Reads a command line whose flags are `known`.
    ///
    /// # Errors
    /// A flag is unknown or has no value, or the command line asks for help.
    pub(crate) fn read(arguments: &'a [String], known: &[&'static str]) -> Result<Self, Failure> {
        let mut flags = Self::default();
        let mut arguments = arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                flags.words.extend(arguments);
                break;
            }
            let Some(flag) = argument.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
                flags.words.push(argument);
                continue;
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let Some(&known) = known.iter().find(|known| **known == name) else {
                let help = matches!(name, "h" | "help");
                return Err(if help {
                    Failure::Help
                } else {
                    Failure::Usage(format!("unknown flag {argument}: --help lists the flags"))
                });
            };
            let value = value
                .or_else(|| arguments.next())
                .ok_or_else(|| Failure::Usage(format!("the flag --{known} needs a value")))?;
            flags.values.insert(known, value);
        }
        Ok(flags)
    }

    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).copied()
    }

    /// The permission bits that `--mode` gives in octal digits.
    ///
    /// # Errors
    /// The value is not a mode from 0 to 7777.
    pub(crate) fn file_mode(&self, default: u32) -> Result<u32, Failure> {
        let Some(text) = self.value("mode") else { return Ok(default) };
        let digits = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        match u32::from_str_radix(text, 8) {
            Ok(mode) if digits && mode <= 0o7777 => Ok(mode),
            _ => Err(Failure::Usage(format!("--mode {text:?} is not octal: use a mode such as 644"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn flags_have_one_dash_or_two_and_a_value_beside_or_after() {
        for line in
            ["-mode=600 /a", "--mode=600 /a", "-mode 600 /a", "/a --mode 600", "--mode 1 -mode 600 /a"]
        {
            let words = words(line);
            let flags = Flags::read(&words, &["mode", "listen"]).expect(line);
            assert_eq!((flags.value("mode"), flags.value("listen")), (Some("600"), None), "{line}");
            assert_eq!(flags.words, ["/a"], "{line}");
        }
    }

    #[test]
    fn words_after_two_dashes_are_not_flags() {
        let words = words("--mode= -- --mode - -h");
        let flags = Flags::read(&words, &["mode"]).expect("a valid command line");
        assert_eq!((flags.value("mode"), flags.words), (Some(""), vec!["--mode", "-", "-h"]));
    }

    #[test]
    fn unknown_flags_and_missing_values_are_usage_errors() {
        for (line, expected) in
            [("-x /a", "-x"), ("--mod=1", "--mod=1"), ("---mode=1", "---mode=1"), ("/a --mode", "--mode")]
        {
            let words = words(line);
            match Flags::read(&words, &["mode"]) {
                Err(Failure::Usage(why)) => assert!(why.contains(expected), "{line}: {why}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        for line in ["-h", "--help", "/a -help"] {
            let words = words(line);
            assert!(matches!(Flags::read(&words, &["mode"]), Err(Failure::Help)), "{line}");
        }
    }

    #[test]
    fn file_modes_are_parsed_as_octal() {
        let mode = |text: &str| {
            let words = [format!("--mode={text}")];
            Flags::read(&words, &["mode"]).and_then(|flags| flags.file_mode(0o644))
        };
        assert_eq!(Flags::default().file_mode(0o644).expect("the default"), 0o644);
        for (text, expected) in [("0", 0), ("600", 0o600), ("0755", 0o755), ("7777", 0o7777)] {
            assert_eq!(mode(text).expect(text), expected);
        }
        for text in ["", "8", "-1", "+600", "10000", "rw", "77777777777777"] {
            assert!(matches!(mode(text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
