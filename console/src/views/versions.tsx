/** The versions of a bundle, what the channels point to, and actions on them. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Connection } from '../connection.ts';
import { type Action, ActionDialog } from '../dialog.tsx';
import { formatBytes, formatExact, formatTime } from '../format.ts';
import type { Bundle, GateRun, View } from '../types.ts';
import { Comparison } from './comparison.tsx';
import { GateReportCard } from './gate-report.tsx';

const PATH = '/controller/v1/actions';

export function Versions({
  connection,
  onNavigate,
}: {
  connection: Connection;
  onNavigate: (view: View) => void;
}): JSX.Element {
  const [action, setAction] = useState<Action>();
  const [shown, setShown] = useState<{ bundle: string; version: string }>();
  const bundles = connection.state.bundles ?? [];
  return (
    <>
      <div class="toolbar">
        <h2>Versions</h2>
      </div>
      {bundles.length === 0 && <p class="empty">No bundle is known yet.</p>}
      {bundles.map((bundle) => (
        <BundleCard
          key={bundle.bundle}
          bundle={bundle}
          onAction={setAction}
          onReport={(version) => setShown({ bundle: bundle.bundle, version })}
        />
      ))}
      {bundles
        .filter(({ bundle }) => bundle === shown?.bundle)
        .map(({ bundle, gateReports }) => (
          <GateReportCard
            key={`${bundle} ${shown?.version} ${gateReports[shown?.version ?? '']}`}
            bundle={bundle}
            version={shown?.version ?? ''}
            newest={gateReports[shown?.version ?? ''] ?? 0}
            onClose={() => setShown(undefined)}
          />
        ))}
      {bundles.map((bundle) => (
        <Comparison key={bundle.bundle} bundle={bundle} />
      ))}
      {bundles.map((bundle) => (
        <History key={bundle.bundle} bundle={bundle} />
      ))}
      {action !== undefined && (
        <ActionDialog
          action={action}
          connection={connection}
          onClose={(isDone) => {
            setAction(undefined);
            if (isDone && action.path.endsWith('/rollout')) onNavigate('rollout');
          }}
        />
      )}
    </>
  );
}

function BundleCard({
  bundle,
  onAction,
  onReport,
}: {
  bundle: Bundle;
  onAction: (action: Action) => void;
  onReport: (version: string) => void;
}): JSX.Element {
  const { versions, rollouts, gateReports } = bundle;
  return (
    <section class="card">
      <h3>{bundle.bundle}</h3>
      {versions.length === 0 && <p class="empty">No version is published.</p>}
      <div class="scroll">
        <table class="stacks">
          <thead>
            <tr>
              <th>Version</th>
              <th>State</th>
              <th class="number">Rows</th>
              <th class="number">Size</th>
              <th>Last change</th>
              <th>Actions</th>
            </tr>
          </thead>
          <tbody>
            {versions.map(({ version, rows, bytes }) => (
              <tr key={version} data-version={version}>
                <td>
                  <b>{version}</b>
                </td>
                <td>
                  <States bundle={bundle} version={version} />
                </td>
                <td class="number" data-label="rows">
                  {formatExact(rows)}
                </td>
                <td class="number">{formatBytes(bytes)}</td>
                <td class="wrap full">
                  <LastChange bundle={bundle} version={version} />
                </td>
                <td class="full">
                  <div class="buttons">
                    {gateReports[version] !== undefined && (
                      <button
                        type="button"
                        class="small"
                        aria-label={`Gate report ${version}`}
                        onClick={() => onReport(version)}
                      >
                        Gate report
                      </button>
                    )}
                    {listActions(bundle, version, rollouts).map((action) => (
                      <button
                        type="button"
                        class="small"
                        key={action.title}
                        aria-label={`${action.label} ${version} ${action.body['channel'] ?? ''}`}
                        onClick={() => onAction(action)}
                      >
                        {action.label}
                      </button>
                    ))}
                  </div>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function findChannels({ channels }: Bundle, version: string): string[] {
  return channels
    .filter(({ history }) => history.at(-1)?.version === version)
    .map(({ channel }) => channel);
}

function States({ bundle, version }: { bundle: Bundle; version: string }): JSX.Element {
  const channels = findChannels(bundle, version);
  const rollout = bundle.rollouts.find((candidate) => candidate.version === version);
  const isQuarantined = bundle.quarantined.includes(version);
  const gate = bundle.gates.find((run) => run.version === version);
  return (
    <div class="buttons">
      {channels.map((channel) => (
        <span class="badge active" key={channel}>
          {channel}
        </span>
      ))}
      {bundle.candidate === version && channels.length === 0 && !isQuarantined && (
        <span class="badge note">staged</span>
      )}
      {isQuarantined && <span class="badge quarantined">quarantined</span>}
      {rollout !== undefined && !HIDDEN_STATES.includes(rollout.state) && (
        <span class="badge note">rollout {rollout.state}</span>
      )}
      {channels.length === 0 &&
        !isQuarantined &&
        bundle.candidate !== version &&
        HIDDEN_STATES.includes(rollout?.state ?? '') && <span class="badge">published</span>}
      {gate !== undefined && <GateBadge run={gate} />}
    </div>
  );
}

function GateBadge({ run }: { run: GateRun }): JSX.Element {
  const { outcome, by, reason } = run;
  const [kind, text] = GATE_BADGES[outcome?.verdict ?? 'running'];
  return (
    <>
      <span
        class={`badge ${kind}`}
        data-gate={outcome?.verdict ?? 'running'}
        title={`${by}: ${reason}`}
      >
        {text}
      </span>
      {outcome?.verdict === 'error' && <span class="error">{outcome.summary}</span>}
    </>
  );
}

const GATE_BADGES = {
  running: ['loading', 'gate running'],
  pass: ['ready', 'gate passed'],
  fail: ['error', 'gate failed'],
  error: ['error', 'gate could not run'],
} as const;

function LastChange({ bundle, version }: { bundle: Bundle; version: string }): JSX.Element {
  const entries = bundle.channels.flatMap(({ history }) => history);
  const last = entries
    .filter((entry) => [entry.version, entry.quarantines, entry.lifts].includes(version))
    .at(-1);
  if (last === undefined) return <span class="muted">–</span>;
  return (
    <>
      {last.reason}
      <div class="muted">
        {last.by}, {formatTime(last.at)}
      </div>
    </>
  );
}

interface LabelledAction extends Action {
  readonly label: string;
}

/** The actions that make sense for the version now. The controller checks them again. */
function listActions(
  bundle: Bundle,
  version: string,
  rollouts: Bundle['rollouts'],
): LabelledAction[] {
  const { bundle: name, channels, quarantined } = bundle;
  const main = channels.at(-1);
  const body = { bundle: name, version };
  const act = (
    path: string,
    label: string,
    title: string,
    text: string,
    extra: Partial<LabelledAction> = {},
  ): LabelledAction => ({ path: `${PATH}/${path}`, label, title, text, body, ...extra });
  if (quarantined.includes(version)) {
    const text = `Version ${version} may be loaded and served again.`;
    return [act('lift', 'Lift quarantine', `Lift the quarantine of ${version}`, text)];
  }
  const pointing = channels.filter(({ history }) => history.at(-1)?.version === version);
  if (pointing.length > 0) {
    return pointing
      .filter(({ previous }) => previous !== undefined)
      .map(({ channel, previous }) => {
        const target = `Channel ${channel} returns to version ${previous}`;
        const text = `${target}; ${version} is quarantined.`;
        const extra = { isDangerous: true, body: { ...body, channel } };
        return act('rollback', 'Roll back', `Roll back ${channel}`, text, extra);
      });
  }
  const state = rollouts.find((candidate) => candidate.version === version)?.state;
  const isRolling = state !== undefined && ROLLING.includes(state);
  const channel = main?.channel ?? '';
  return [
    ...(isRolling
      ? []
      : [
          act(
            'rollout',
            'Roll out',
            `Roll out ${version}`,
            `Version ${version} is staged on all servers${
              bundle.policy?.gate ? ', passes the gate,' : ''
            } and becomes active on ${channels.map((each) => each.channel).join(', then ')}.`,
          ),
        ]),
    act('stage', 'Stage', `Stage ${version}`, 'All servers load the version; no traffic moves.'),
    act(
      'gate',
      'Gate',
      `Run the gate on ${version}`,
      'Recorded rows are scored by this version and the active one, on the servers of the fleet. ' +
        'Stage the version first. The report is stored; no traffic moves.',
    ),
    act(
      'activate',
      'Activate',
      `Activate ${version}`,
      `Channel ${channel} points to version ${version} at once, without gate and watch.`,
      { isDangerous: true, body: { ...body, channel } },
    ),
    act('quarantine', 'Quarantine', `Quarantine ${version}`, 'The version must not be served.', {
      isDangerous: true,
    }),
  ];
}

/** They say nothing that another badge does not say. */
const HIDDEN_STATES = ['', 'not started', 'quarantined'];
const ROLLING = ['seen', 'staging', 'staged', 'gating', 'activating'];

function History({ bundle }: { bundle: Bundle }): JSX.Element {
  return (
    <section class="card">
      <h3>History of {bundle.bundle}</h3>
      <div class="scroll">
        <table class="stacks">
          <thead>
            <tr>
              <th>Time</th>
              <th>Channel</th>
              <th>Version</th>
              <th>By</th>
              <th class="grow">Reason</th>
            </tr>
          </thead>
          <tbody>
            {bundle.channels.flatMap(({ channel, history }) =>
              history.toReversed().map((entry) => (
                <tr key={`${channel} ${entry.seq}`}>
                  <td class="time">{formatTime(entry.at)}</td>
                  <td>{channel}</td>
                  <td data-label="version">
                    {entry.version}
                    {entry.quarantines !== undefined && (
                      <div class="muted">{entry.quarantines} quarantined</div>
                    )}
                    {entry.lifts !== undefined && (
                      <div class="muted">{entry.lifts} allowed again</div>
                    )}
                  </td>
                  <td class="wrap">{entry.by}</td>
                  <td class="wrap full">{entry.reason}</td>
                </tr>
              )),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}
