//! Reads the command line of the TCP proxy rivers.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use strum::VariantNames;

use crate::flags::{Failure, Flags};
use crate::limits::{
    CHECK_INTERVAL, DIAL_KEEP_ALIVE, DIAL_TIMEOUT, KEEP_ALIVE_RANGE, LONGEST_DIAL, MAX_UPSTREAMS,
    MIN_CHECK_INTERVAL, SHUTDOWN_TIMEOUT,
};
use crate::rivers::log::{Format, Level, LogSettings};

const FLAGS: [&str; 9] = [
    "upstreams",
    "listen",
    "shutdown-timeout",
    "dial-timeout",
    "dial-keep-alive",
    "check-interval",
    "loglevel",
    "logformat",
    "logfile",
];

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) upstreams: Vec<SocketAddr>,
    pub(crate) listen: SocketAddr,
    /// Time for connections to end; `None`: no limit.
    pub(crate) shutdown: Option<Duration>,
    pub(crate) dial: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) check: Duration,
    pub(crate) log: LogSettings,
}

impl Settings {
    /// Reads the command line.
    ///
    /// # Errors
    /// A flag is missing, unknown or wrong, or the command line asks for help.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let flags = Flags::read(arguments, &FLAGS)?;
        if let Some(word) = flags.words.first() {
            return Err(Failure::Usage(format!("{word:?} is not a flag of rivers: see rivers --help")));
        }
        let upstreams = required_value(&flags, "upstreams")?
            .split(',')
            .map(|text| parse_address("upstreams", text))
            .collect::<Result<Vec<_>, _>>()?;
        if upstreams.len() > MAX_UPSTREAMS {
            let number = upstreams.len();
            return Err(Failure::Usage(format!(
                "--upstreams: got {number}, expected at most {MAX_UPSTREAMS}"
            )));
        }
        let listen = required_value(&flags, "listen")?;
        let listen = if listen.starts_with(':') { format!("0.0.0.0{listen}") } else { listen.to_owned() };
        let time = |name, default| duration_flag(&flags, name, default);
        let zero_is = |time: Duration, other| if time.is_zero() { other } else { time };
        let (shortest, longest) = KEEP_ALIVE_RANGE;
        let check = time("check-interval", CHECK_INTERVAL)?;
        if check < MIN_CHECK_INTERVAL {
            return Err(Failure::Usage(format!(
                "--check-interval: got {check:?}, expected at least {MIN_CHECK_INTERVAL:?}"
            )));
        }
        Ok(Self {
            upstreams,
            listen: parse_address("listen", &listen)?,
            shutdown: Some(time("shutdown-timeout", SHUTDOWN_TIMEOUT)?).filter(|time| !time.is_zero()),
            dial: zero_is(time("dial-timeout", DIAL_TIMEOUT)?, LONGEST_DIAL).min(LONGEST_DIAL),
            keep_alive: zero_is(time("dial-keep-alive", DIAL_KEEP_ALIVE)?, DIAL_KEEP_ALIVE)
                .clamp(shortest, longest),
            check,
            log: LogSettings {
                level: parse_choice(&flags, "loglevel", Level::Info)?,
                format: parse_choice(&flags, "logformat", Format::Plain)?,
                file: flags.value("logfile").filter(|file| !file.is_empty()).map(Into::into),
            },
        })
    }
}

fn required_value<'a>(flags: &Flags<'a>, name: &str) -> Result<&'a str, Failure> {
    let value = flags.value(name).filter(|value| !value.is_empty());
    value.ok_or_else(|| Failure::Usage(format!("the flag --{name} is missing")))
}

/// An IP address or `localhost`, with a port.
fn parse_address(name: &str, text: &str) -> Result<SocketAddr, Failure> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let address = local.map(|port| (Ipv4Addr::LOCALHOST, port).into()).or_else(|| text.parse().ok());
    address.ok_or_else(|| {
        Failure::Usage(format!(
            "--{name} {text:?} is not ADDRESS:PORT, such as 10.0.0.1:6443 or [fd00::1]:6443"
        ))
    })
}

fn duration_flag(flags: &Flags<'_>, name: &str, default: Duration) -> Result<Duration, Failure> {
    let Some(text) = flags.value(name) else { return Ok(default) };
    madako_json::duration::parse(text)
        .map_err(|expected| Failure::Usage(format!("--{name} {text:?} is not a duration: {expected}")))
}

/// The value with the name that a flag gives. An empty name is the default, as in CKE.
fn parse_choice<T: FromStr + VariantNames>(flags: &Flags<'_>, name: &str, default: T) -> Result<T, Failure> {
    let Some(text) = flags.value(name).filter(|text| !text.is_empty()) else { return Ok(default) };
    let names = || T::VARIANTS.join(", ");
    text.parse().map_err(|_| Failure::Usage(format!("--{name}: got {text:?}, expected one of {}", names())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Settings, Failure> {
        Settings::read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn defaults_are_those_of_cke() {
        let settings =
            read("--upstreams=10.0.0.1:6443,10.0.0.2:6443 --listen=127.0.0.1:16443").expect("valid");
        let seconds = Duration::from_secs;
        assert_eq!(settings.upstreams.len(), 2);
        assert_eq!(settings.listen.to_string(), "127.0.0.1:16443");
        assert_eq!((settings.shutdown, settings.dial), (Some(seconds(10)), seconds(10)));
        assert_eq!((settings.keep_alive, settings.check), (seconds(15), seconds(20)));
        assert_eq!(
            (settings.log.level, settings.log.format, settings.log.file),
            (Level::Info, Format::Plain, None)
        );
    }

    #[test]
    fn flags_change_the_settings() {
        let line = "-upstreams localhost:1 -listen :2 -shutdown-timeout=0 --dial-timeout 1m30s -dial-keep-alive=0 \
                    -check-interval=100ms -loglevel=error -logformat json -logfile /log";
        let settings = read(line).expect("valid");
        assert_eq!(settings.upstreams, [SocketAddr::from(([127, 0, 0, 1], 1))]);
        assert_eq!(settings.listen, SocketAddr::from(([0, 0, 0, 0], 2)));
        assert_eq!((settings.shutdown, settings.dial), (None, Duration::from_secs(90)));
        assert_eq!((settings.keep_alive, settings.check), (DIAL_KEEP_ALIVE, Duration::from_millis(100)));
        assert_eq!((settings.log.level, settings.log.format), (Level::Error, Format::Json));
        assert_eq!(settings.log.file, Some("/log".into()));
    }

    #[test]
    fn wrong_command_lines_name_the_flag() {
        let many = vec!["10.0.0.1:1"; MAX_UPSTREAMS + 1].join(",");
        for (flags, expected) in [
            ("--listen=:1", "--upstreams is missing"),
            ("--upstreams=", "--upstreams is missing"),
            ("--upstreams=10.0.0.1:1", "--listen is missing"),
            ("--upstreams=10.0.0.1 --listen=:1", "--upstreams \"10.0.0.1\""),
            ("--upstreams=10.0.0.1:1, --listen=:1", "--upstreams \"\""),
            ("--upstreams=10.0.0.1:1 --listen=host:1", "--listen \"host:1\""),
            ("--upstreams=10.0.0.1:1 --listen=:1 --dial-timeout=-1s", "--dial-timeout"),
            ("--upstreams=10.0.0.1:1 --listen=:1 --check-interval=0", "--check-interval"),
            ("--upstreams=10.0.0.1:1 --listen=:1 --loglevel=trace", "critical, error"),
            ("--upstreams=10.0.0.1:1 --listen=:1 now", "\"now\""),
            (&format!("--upstreams={many} --listen=:1"), "--upstreams: got 33, expected at most 32"),
        ] {
            match read(flags) {
                Err(Failure::Usage(why)) => assert!(why.contains(expected), "{flags}: {why}"),
                other => panic!("{flags}: {other:?}"),
            }
        }
    }
}
