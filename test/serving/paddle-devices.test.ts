/** device_type and devices of Paddle's pipelines as execution providers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readPaddleDevices } from '../../serving/config/paddle-devices.ts';

test('device_type and devices choose execution providers', () => {
  const cuda = ['cuda', 'cpu'];
  const cases: [number, string, object][] = [
    [-1, '', {}],
    [0, '0', {}],
    [3, '', {}],
    [4, '0', {}],
    [-1, '0,2', { provider: cuda, devices: [0, 2] }],
    [1, '', { provider: cuda }],
    [1, '3', { provider: cuda, devices: [3] }],
    [2, '1', { provider: ['tensorrt', ...cuda], devices: [1] }],
  ];
  for (const [type, devices, expected] of cases) {
    assert.deepEqual(readPaddleDevices(type, devices, 'op a'), expected, `${type} ${devices}`);
  }
  for (const wrong of ['a', '0,', '-1', '64', '1 2']) {
    const error = { code: 'INVALID_ARGUMENT', message: /^op a: devices: expected numbers in 0/ };
    assert.throws(() => readPaddleDevices(1, wrong, 'op a'), error, wrong);
  }
});
