// What Microsoft's JavaScript SDK does against the emulator. Prints a line of JSON: what it saw.
// node second_client.js CONNECTION_STRING

const { ServiceBusClient } = require("@azure/service-bus");

const WAIT = { maxWaitTimeInMs: 10000 };

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, WAIT);
  return message;
}

async function settling(client) {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain");
  await sender.sendMessages({ body: "without an id" });
  const message = await one(receiver);
  await receiver.completeMessage(message);

  await sender.sendMessages([{ body: "given back" }]);
  await receiver.abandonMessage(await one(receiver));
  const again = await one(receiver);
  await receiver.renewMessageLock(again);
  await receiver.deferMessage(again);
  const [deferred] = await receiver.receiveDeferredMessages(again.sequenceNumber);
  await receiver.deadLetterMessage(deferred, { deadLetterReason: "tired", deadLetterErrorDescription: "of it" });
  const dead = await one(client.createReceiver("plain", { subQueueType: "deadLetter" }));
  return {
    hasId: message.messageId.length > 0,
    deliveryCount: again.deliveryCount,
    reason: dead.deadLetterReason,
  };
}

async function looking(client) {
  const sender = client.createSender("seen");
  const batch = await sender.createMessageBatch();
  for (const body of ["a", "b", "c"]) batch.tryAddMessage({ body });
  await sender.sendMessages(batch);
  const [number] = await sender.scheduleMessages({ body: "later" }, new Date(Date.now() + 3600000));
  await sender.cancelScheduledMessages(number);
  const peeked = await client.createReceiver("seen").peekMessages(10);
  const large = { body: "x".repeat(300 * 1024) };
  const refusal = await sender.sendMessages(large).catch((error) => error.code);
  return { peeked: peeked.map((each) => each.body), refusal };
}

async function sessions(client) {
  const sender = client.createSender("talks");
  await sender.sendMessages({ body: "hello", sessionId: "one" });
  const receiver = await client.acceptSession("talks", "one");
  await receiver.setSessionState("greeted");
  const message = await one(receiver);
  await receiver.completeMessage(message);
  const state = await receiver.getSessionState();
  await receiver.close();
  return { body: message.body, state };
}

async function rules(client) {
  const manager = client.createRuleManager("news", "sub");
  const before = [];
  for await (const rule of manager.listRules()) before.push(rule.name);
  await manager.deleteRule("$Default");
  await manager.createRule("sql", { sqlExpression: "color = 'red'" });
  await manager.createRule("correlation", { subject: "greetings", applicationProperties: { size: 7 } });
  const after = {};
  for await (const rule of manager.listRules()) after[rule.name] = rule.filter;
  const sender = client.createSender("news");
  await sender.sendMessages([
    { body: "neither" },
    { body: "red", applicationProperties: { color: "red" } },
    { body: "greetings", subject: "greetings", applicationProperties: { size: 7 } },
  ]);
  const receiver = client.createReceiver("news", "sub");
  const found = [(await one(receiver)).body, (await one(receiver)).body];
  return { before, sql: after.sql.sqlExpression, subject: after.correlation.subject, found };
}

async function missing(client) {
  const error = await client.createSender("nowhere").sendMessages({ body: "x" }).catch((each) => each);
  return { code: error.code, message: error.message };
}

async function main() {
  const client = new ServiceBusClient(process.argv[2], { retryOptions: { maxRetries: 0 } });
  const seen = {};
  for (const look of [settling, looking, sessions, rules, missing]) seen[look.name] = await look(client);
  await client.close();
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
