#!/usr/bin/env node
/** keys: makes, lists, rotates and ends API keys. */
import { run } from './cli.ts';

process.exitCode = await run();
