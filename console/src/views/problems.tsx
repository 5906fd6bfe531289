/** What is wrong: findings, failed loads, failed requests, and recent warnings of the log. */
import type { JSX } from 'preact';
import type { Connection } from '../connection.ts';
import { formatCount, formatTime } from '../format.ts';
import type { Finding, State } from '../types.ts';

export function countProblems(state: State): number {
  return listFindings(state).filter(({ severity }) => severity !== 'note').length;
}

function listFindings(state: State): Finding[] {
  const findings: Finding[] = [...(state.findings ?? [])];
  const add = (severity: Finding['severity'], where: string, what: string): void => {
    findings.push({ severity, where, what });
  };
  for (const { model, channels, failed, unavailable } of state.models ?? []) {
    if (unavailable !== undefined) add('error', model, unavailable);
    for (const { channel, problem, active } of channels) {
      const severity = active === undefined ? 'error' : 'warning';
      if (problem !== undefined) add(severity, `${model}, channel ${channel}`, problem);
    }
    for (const { version, message } of failed) add('error', `${model} ${version}`, message);
  }
  for (const { model, problem } of state.experimentProblems ?? []) {
    add('error', `experiments of ${model}`, problem);
  }
  for (const { servers } of state.stores ?? []) {
    for (const { endpoint, state: of } of servers) {
      if (of === 'failed') add('error', endpoint, 'the shard server does not answer');
    }
  }
  for (const { address, answers, error, failed } of state.servers ?? []) {
    if (!answers) add('error', address, error ?? 'the server does not answer');
    for (const { bundle, version, message } of failed) {
      add('error', address, `loading ${bundle} ${version} failed: ${message}`);
    }
  }
  return findings;
}

export function Problems({ connection }: { connection: Connection }): JSX.Element {
  const { state } = connection;
  const findings = listFindings(state);
  return (
    <>
      <div class="toolbar">
        <h2>Problems</h2>
      </div>
      <section class="card">
        <h3>Now</h3>
        {findings.length === 0 && <p class="empty">No problems found.</p>}
        {findings.map(({ severity, where, what, todo }) => (
          <div class={`finding ${severity}`} key={`${where} ${what}`}>
            <span class={`badge ${severity}`}>{severity}</span>
            <div>
              <b>{where}</b>
              <p>{what}</p>
              {todo !== undefined && <p class="muted">{todo}</p>}
            </div>
          </div>
        ))}
      </section>
      <Failures failures={state.failures ?? []} />
      <Warnings state={state} />
    </>
  );
}

function Failures({ failures }: { failures: NonNullable<State['failures']> }): JSX.Element | null {
  if (failures.length === 0) return null;
  return (
    <section class="card">
      <h3>Failed requests since the start</h3>
      <table>
        <thead>
          <tr>
            <th>Protocol</th>
            <th>Code</th>
            <th class="number">Requests</th>
          </tr>
        </thead>
        <tbody>
          {failures.map(({ protocol, code, count }) => (
            <tr key={`${protocol} ${code}`}>
              <td>{protocol}</td>
              <td>{code}</td>
              <td class="number">{formatCount(count)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Warnings({ state }: { state: State }): JSX.Element {
  const warnings = state.warnings ?? [];
  return (
    <section class="card">
      <h3>Recent warnings and errors of the log</h3>
      {warnings.length === 0 && <p class="empty">None since the start.</p>}
      {warnings.length > 0 && (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Level</th>
                <th class="grow">Message</th>
                <th class="number">Count</th>
                <th>Last</th>
              </tr>
            </thead>
            <tbody>
              {warnings.map(({ level, message, detail, count, lastAt }) => (
                <tr key={message}>
                  <td>
                    <span class={`badge ${level === 'error' ? 'error' : 'warning'}`}>{level}</span>
                  </td>
                  <td>
                    {message}
                    {detail !== '' && <div class="muted">{detail}</div>}
                  </td>
                  <td class="number">{formatCount(count)}</td>
                  <td>{formatTime(lastAt)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
