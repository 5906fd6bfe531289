/** The tables of loaded versions. */
import type { JSX } from 'preact';
import type { Connection } from '../connection.ts';
import { formatBytes, formatCount } from '../format.ts';
import { Bar } from './live.tsx';

export function Tables({ connection }: { connection: Connection }): JSX.Element {
  const versions = connection.state.versions ?? [];
  const largest = Math.max(
    1,
    ...versions.flatMap(({ tables }) => tables.map(({ bytes }) => bytes)),
  );
  return (
    <>
      <div class="toolbar">
        <h2>Tables</h2>
      </div>
      {versions.length === 0 && <p class="empty">No version is loaded.</p>}
      {versions.map(({ model, version, tables }) => (
        <section class="card" key={`${model}/${version}`}>
          <h3>
            {model}, version {version}
          </h3>
          {tables.length === 0 && <p class="empty">This version has no tables.</p>}
          {tables.length > 0 && (
            <div class="scroll">
              <table>
                <thead>
                  <tr>
                    <th>Table</th>
                    <th class="number">Rows</th>
                    <th class="number">Dim</th>
                    <th>Type</th>
                    <th class="number">Shards</th>
                    <th class="number">Layers</th>
                    <th class="grow">Size</th>
                  </tr>
                </thead>
                <tbody>
                  {tables.map(({ name, rows, dim, dtype, shardNum, layers, bytes }) => (
                    <tr key={name}>
                      <td>{name}</td>
                      <td class="number">{formatCount(rows)}</td>
                      <td class="number">{dim}</td>
                      <td>{dtype}</td>
                      <td class="number">{shardNum}</td>
                      <td class="number">{layers}</td>
                      <td>
                        <Bar share={bytes / largest} label={formatBytes(bytes)} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </section>
      ))}
    </>
  );
}
