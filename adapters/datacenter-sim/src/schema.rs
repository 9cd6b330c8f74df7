//! The GraphQL schema: sabakan's (its `gql/graph/schema.graphqls`), resolved over the simulated data center.

use async_graphql::{
    Context, EmptySubscription, Enum, Error, ErrorExtensions, ID, InputObject, InputValueError,
    InputValueResult, Object, Scalar, ScalarType, Schema, SimpleObject, Value,
};
use madako_messages::machine::{self as domain, MachineLabel};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::addressing::Nic;
use crate::datacenter::Record;
use crate::filter::chooses;
use crate::service::SimulatedRegistry;

pub(crate) type RegistrySchema = Schema<Query, Mutation, EmptySubscription>;

pub(crate) fn schema(registry: SimulatedRegistry) -> RegistrySchema {
    Schema::build(Query, Mutation, EmptySubscription).data(registry).finish()
}

/// A date and time, in RFC 3339 with the fraction that it has.
struct DateTime(OffsetDateTime);

#[Scalar]
impl ScalarType for DateTime {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) => Ok(Self(OffsetDateTime::parse(text, &Rfc3339)?)),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn to_value(&self) -> Value {
        // sabakan's Go code shows a date beyond its format's range in its own way; ours never leave it.
        self.0.format(&Rfc3339).map_or(Value::Null, Value::String)
    }
}

/// An IPv4 or IPv6 address.
struct IpAddress(String);

#[Scalar(name = "IPAddress")]
impl ScalarType for IpAddress {
    fn parse(value: Value) -> InputValueResult<Self> {
        match &value {
            Value::String(text) if text.parse::<std::net::IpAddr>().is_ok() => Ok(Self(text.clone())),
            _ => Err(InputValueError::expected_type(value)),
        }
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.clone())
    }
}

#[derive(Enum, Clone, Copy, PartialEq, Eq)]
#[graphql(remote = "domain::MachineState")]
enum MachineState {
    Uninitialized,
    Healthy,
    Unhealthy,
    Unreachable,
    Updating,
    Retiring,
    Retired,
}

#[derive(InputObject)]
struct LabelInput {
    name: String,
    value: String,
}

#[derive(InputObject)]
struct MachineParams {
    labels: Option<Vec<LabelInput>>,
    racks: Option<Vec<i64>>,
    roles: Option<Vec<String>>,
    states: Option<Vec<MachineState>>,
    min_days_before_retire: Option<i64>,
}

impl From<MachineParams> for domain::MachineParams {
    fn from(params: MachineParams) -> Self {
        let label = |label: LabelInput| MachineLabel { name: label.name, value: label.value };
        Self {
            labels: params.labels.map(|labels| labels.into_iter().map(label).collect()),
            racks: params.racks,
            roles: params.roles,
            states: params.states.map(|states| states.into_iter().map(Into::into).collect()),
            min_days_before_retire: params.min_days_before_retire,
        }
    }
}

#[derive(SimpleObject)]
struct Machine {
    spec: MachineSpec,
    status: MachineStatus,
    info: MachineInfo,
}

#[derive(SimpleObject)]
struct MachineSpec {
    serial: ID,
    /// `null` where there is none.
    labels: Option<Vec<Label>>,
    rack: i64,
    index_in_rack: i64,
    role: String,
    ipv4: Vec<IpAddress>,
    register_date: DateTime,
    retire_date: DateTime,
    bmc: Bmc,
}

#[derive(SimpleObject)]
struct Label {
    name: String,
    value: String,
}

#[derive(SimpleObject)]
#[graphql(name = "BMC")]
struct Bmc {
    bmc_type: String,
    ipv4: IpAddress,
}

#[derive(SimpleObject)]
pub(crate) struct MachineStatus {
    state: MachineState,
    timestamp: DateTime,
    duration: f64,
}

#[derive(SimpleObject)]
struct MachineInfo {
    network: NetworkInfo,
    bmc: BmcInfo,
}

#[derive(SimpleObject)]
struct NetworkInfo {
    ipv4: Vec<NicConfig>,
}

#[derive(SimpleObject)]
#[graphql(name = "BMCInfo")]
struct BmcInfo {
    ipv4: NicConfig,
}

#[derive(SimpleObject)]
#[graphql(name = "NICConfig")]
struct NicConfig {
    address: IpAddress,
    netmask: IpAddress,
    maskbits: u32,
    gateway: IpAddress,
}

impl From<Nic> for NicConfig {
    fn from(nic: Nic) -> Self {
        Self {
            address: IpAddress(nic.address.to_string()),
            netmask: IpAddress(nic.netmask().to_string()),
            maskbits: nic.mask_bits,
            gateway: IpAddress(nic.gateway.to_string()),
        }
    }
}

impl From<Record> for Machine {
    fn from(record: Record) -> Self {
        let status = MachineStatus::from(&record);
        let spec = record.machine.spec;
        let labels: Vec<Label> =
            spec.labels.into_iter().map(|label| Label { name: label.name, value: label.value }).collect();
        Self {
            spec: MachineSpec {
                serial: ID(spec.serial),
                labels: (!labels.is_empty()).then_some(labels),
                rack: spec.rack,
                index_in_rack: spec.index_in_rack,
                role: spec.role,
                ipv4: spec.ipv4.into_iter().map(IpAddress).collect(),
                register_date: DateTime(spec.register_date),
                retire_date: DateTime(spec.retire_date),
                bmc: Bmc { bmc_type: spec.bmc.bmc_type, ipv4: IpAddress(record.bmc.address.to_string()) },
            },
            status,
            info: MachineInfo {
                network: NetworkInfo { ipv4: record.nics.into_iter().map(Into::into).collect() },
                bmc: BmcInfo { ipv4: record.bmc.into() },
            },
        }
    }
}

impl From<&Record> for MachineStatus {
    fn from(record: &Record) -> Self {
        Self {
            state: record.machine.status.state.into(),
            timestamp: DateTime(record.since),
            duration: record.machine.status.duration,
        }
    }
}

pub(crate) struct Query;

#[Object]
impl Query {
    /// One machine by its serial.
    async fn machine(&self, context: &Context<'_>, serial: ID) -> Result<Machine, Error> {
        let registry = context.data::<SimulatedRegistry>()?;
        registry.record(&serial).map(Machine::from).ok_or_else(|| Error::new("not found"))
    }

    /// The machines that meet `having` and do not meet `notHaving`.
    async fn search_machines(
        &self,
        context: &Context<'_>,
        having: Option<MachineParams>,
        not_having: Option<MachineParams>,
    ) -> Result<Vec<Machine>, Error> {
        let registry = context.data::<SimulatedRegistry>()?;
        let variables = domain::QueryVariables {
            having: having.map(domain::MachineParams::from),
            not_having: not_having.map(domain::MachineParams::from),
        };
        registry.searched(&variables);
        let (having, not_having) = (variables.having.as_ref(), variables.not_having.as_ref());
        let (records, now) = registry.records();
        Ok(records
            .into_iter()
            .filter(|record| chooses(&record.machine, having, not_having, now))
            .map(Machine::from)
            .collect())
    }
}

pub(crate) struct Mutation;

#[Object]
impl Mutation {
    /// Sets a machine's state, by the rules of its life.
    async fn set_machine_state(
        &self,
        context: &Context<'_>,
        serial: ID,
        state: MachineState,
    ) -> Result<MachineStatus, Error> {
        let registry = context.data::<SimulatedRegistry>()?;
        registry.set_state(&serial, state.into()).map_err(|error| {
            Error::new(error.to_string()).extend_with(|_, extensions| {
                extensions.set("serial", serial.as_str());
                extensions.set("type", error.code());
            })
        })?;
        let record = registry.record(&serial).ok_or_else(|| Error::new("not found"))?;
        Ok(MachineStatus::from(&record))
    }
}
