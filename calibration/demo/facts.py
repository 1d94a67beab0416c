"""Everyday facts the demo model learns: written for this project, by hand, in plain words.

A relation is a name, its phrasings and its facts. `{}` in a phrasing is the place of the key; a
fact is `key = answer`, and facts are separated by `;`. Every fact is asked in every phrasing of its
relation, and `questions.split` decides which of those phrasings the model never sees.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Facts of one kind, with the ways to ask for them."""

    name: str
    phrasings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]  # (key, answer)

    def __post_init__(self) -> None:
        keys = [key for key, _ in self.facts]
        if len(set(keys)) != len(keys):
            raise ValueError(f"relation {self.name} states a key twice")
        if any(phrasing.count("{}") != 1 for phrasing in self.phrasings):
            raise ValueError(f"relation {self.name} has a phrasing without exactly one {{}}")


def _relation(name: str, phrasings: str, facts: str) -> Relation:
    pairs = (fact.split("=") for fact in facts.split(";"))
    return Relation(
        name=name,
        phrasings=tuple(line.strip() for line in phrasings.strip().splitlines()),
        facts=tuple((" ".join(key.split()), " ".join(answer.split())) for key, answer in pairs),
    )


COMMONSENSE = (
    _relation(
        "place",
        """Where do you usually find {}?
        Where does {} belong?
        I look for {}. Where do I go?
        In which place would {} be?
        The usual place of {}?
        Someone needs {}. Look where first?
        You see {}. Where are you?
        Best place to look for {}?
        Think of {}. What place is that?
        Around {} you expect the""",
        """a pillow = bedroom; a blanket = bedroom; an alarm clock = bedroom;
        a frying pan = kitchen; a kettle = kitchen; a toaster = kitchen; a toothbrush = bathroom;
        a shower = bathroom; a bath towel = bathroom; a rake = garden; a flower bed = garden;
        a swing = garden; a cow = farm; a tractor = farm; a barn = farm; a desk lamp = office;
        a stapler = office; a printer = office; a blackboard = school; a teacher = school;
        a lighthouse = coast; a sand castle = beach; a seashell = beach; an airplane = airport;
        a pilot = airport; a nurse = hospital; a surgeon = hospital; a bookshelf = library;
        a librarian = library; a squirrel = forest; an oak tree = forest; a camel = desert;
        a cactus = desert; a whale = ocean; a coral reef = ocean; a baker = bakery;
        a bread oven = bakery; a lion cage = zoo; a judge = court; an actor = theater""",
    ),
    _relation(
        "tool",
        """What do you use to {}?
        Which tool helps you {}?
        You want to {}. What do you need?
        To {}, people use what?
        Name the tool to {}.
        I have to {}. Hand me what?
        What would you take to {}?
        Needed to {}:
        How do you {}? With a
        The right thing to {} is a""",
        """cut bread = knife; cut paper = scissors; drive a nail = hammer;
        turn a screw = screwdriver; eat soup = spoon; sweep the floor = broom; dig a hole = shovel;
        write a letter = pen; open a lock = key; tell the time = clock; measure length = ruler;
        dry your hair = towel; sew a button = needle; paint a wall = brush;
        see far away = telescope; see tiny things = microscope; light a candle = match;
        stay dry in rain = umbrella; weigh flour = scale; fell a tree = saw; catch fish = net;
        find north = compass; wash your hands = soap; comb hair = comb; iron a shirt = iron;
        call a friend = phone; take a photo = camera; climb a roof = ladder; boil water = kettle;
        row a boat = oar""",
    ),
    _relation(
        "property",
        """What is the color of {}?
        Which color does {} have?
        {} is usually what color?
        Color of {}:
        If you paint {}, which color fits?
        Tell me the color of {}.
        Picture {}. What color?
        What color would you expect of {}?
        Crayon to draw {}:
        The color we link with {} is""",
        """fresh snow = white; grass = green; a ripe banana = yellow; the clear sky = blue;
        coal = black; blood = red; a carrot = orange; milk = white; an eggplant = purple;
        a tomato = red; a lemon = yellow; a frog = green; chocolate = brown; a raven = black;
        an elephant = gray; a flamingo = pink; a spruce = green; salt = white; soil = brown;
        a strawberry = red; sunflower petals = yellow; a pumpkin = orange; ash = gray;
        cotton = white""",
    ),
    _relation(
        "outcome",
        """What happens when {}?
        {}. What follows?
        Suppose {}. And then?
        Say what happens if {}.
        The result when {}?
        After {}, what do you expect?
        Imagine {}. The outcome?
        What comes next once {}?
        As soon as {}, tell what follows.
        When {}:""",
        """ice gets warm = it melts; water gets very cold = it freezes;
        a glass hits the floor = it breaks; paper touches fire = it burns;
        a plant has no water = it dies; iron stays wet = it rusts; water gets very hot = it boils;
        a ball is dropped = it falls; wood is put on water = it floats;
        a stone is put on water = it sinks; sugar is stirred in tea = it dissolves;
        a balloon meets a pin = it pops; the sun sets = it gets dark; the sun rises = it gets light;
        you skip meals = you get hungry; you run for hours = you get tired;
        you stand in rain = you get wet; dough is baked = it becomes bread;
        milk is left out = it turns sour; a seed is watered = it grows;
        a battery is used up = it is empty; you touch a hot pan = you get burned;
        a rope is overloaded = it tears; a baby is hungry = it cries""",
    ),
)

SCIENCE = (
    _relation(
        "symbol",
        """What is the symbol of {}?
        Chemical symbol for {}?
        How do chemists write {}?
        {} has which symbol?
        In the periodic table, {} is
        Write {} as a symbol.
        Symbol that stands for {}:
        Give the symbol of {}.
        A bottle of {} is labeled
        Short for {} in chemistry:""",
        """hydrogen = H; helium = He; lithium = Li; carbon = C; nitrogen = N; oxygen = O;
        fluorine = F; neon = Ne; sodium = Na; magnesium = Mg; aluminum = Al; silicon = Si;
        phosphorus = P; sulfur = S; chlorine = Cl; argon = Ar; potassium = K; calcium = Ca;
        titanium = Ti; iron = Fe; nickel = Ni; copper = Cu; zinc = Zn; silver = Ag; tin = Sn;
        iodine = I; gold = Au; mercury = Hg; lead = Pb; uranium = U""",
    ),
    _relation(
        "unit",
        """What is the SI unit of {}?
        In which unit is {} measured?
        Unit of {}:
        {} is given in which unit?
        Name the unit for {}.
        Physicists state {} in
        Which unit belongs to {}?
        Tell me the unit of {}.
        A table of {} uses the
        You measured {}. Which unit?""",
        """length = meter; mass = kilogram; time = second; current = ampere; temperature = kelvin;
        force = newton; energy = joule; power = watt; pressure = pascal; voltage = volt;
        resistance = ohm; frequency = hertz; charge = coulomb; magnetic flux = weber;
        capacitance = farad; luminous flux = lumen""",
    ),
    _relation(
        "planet",
        """Which planet is {}?
        Name the planet that is {}.
        The planet {} is
        Planet {}?
        Looking for the planet {}.
        Tell me which planet is {}.
        Of the eight planets, which is {}?
        What do we call the planet {}?
        Planet that is {}:
        In space, {} is""",
        """first from the sun = Mercury; second from the sun = Venus; third from the sun = Earth;
        fourth from the sun = Mars; fifth from the sun = Jupiter; sixth from the sun = Saturn;
        seventh from the sun = Uranus; eighth from the sun = Neptune; just after Mercury = Venus;
        just after Venus = Earth; just after Earth = Mars; just after Mars = Jupiter;
        just after Jupiter = Saturn; just after Saturn = Uranus; just after Uranus = Neptune;
        the largest = Jupiter; the smallest = Mercury; the hottest = Venus;
        known for its rings = Saturn; called the red one = Mars""",
    ),
    _relation(
        "animal",
        """In which class is the {}?
        The {} is what kind of animal?
        Animal class of the {}:
        Fish, bird or else: the {}?
        Sort the {} into its class.
        The {} counts as
        Class of {}?
        Which group includes the {}?
        What sort of animal is the {}?
        Is the {} a fish, a bird or else?""",
        """dog = mammal; whale = mammal; bat = mammal; dolphin = mammal; mouse = mammal;
        horse = mammal; eagle = bird; penguin = bird; owl = bird; ostrich = bird; sparrow = bird;
        shark = fish; salmon = fish; tuna = fish; trout = fish; seahorse = fish; snake = reptile;
        lizard = reptile; turtle = reptile; crocodile = reptile; frog = amphibian; toad = amphibian;
        newt = amphibian; bee = insect; ant = insect; beetle = insect; butterfly = insect;
        mosquito = insect; tarantula = arachnid; scorpion = arachnid""",
    ),
    _relation(
        "state",
        """At room temperature, {} is a
        Is {} a solid, liquid or gas?
        State of matter of {}?
        {} in a warm room: solid, liquid, gas?
        In which state do we meet {}?
        Say the state of {}.
        Which state of matter is {} in?
        You hold {} in a jar. It is a
        What state has {} at 20 degrees?
        Solid, liquid or gas: {}?""",
        """oxygen gas = gas; helium gas = gas; carbon dioxide = gas; steam = gas; methane = gas;
        water = liquid; alcohol = liquid; mercury metal = liquid; gasoline = liquid;
        vinegar = liquid; iron = solid; table salt = solid; granite = solid; gold = solid;
        glass = solid; diamond = solid""",
    ),
    _relation(
        "formula",
        """What is the formula of {}?
        Chemical formula for {}:
        Write the formula of {}.
        The molecule of {} is
        How is {} written in a formula?
        Give me the formula of {}.
        {} as a formula?
        Which formula has {}?
        A chemist writes {} as
        Formula of {}?""",
        """water = H2O; carbon dioxide = CO2; table salt = NaCl; methane = CH4; ammonia = NH3;
        oxygen gas = O2; hydrogen gas = H2; ozone = O3; carbon monoxide = CO; sulfuric acid = H2SO4;
        hydrochloric acid = HCl; hydrogen peroxide = H2O2; glucose = C6H12O6; nitrogen gas = N2""",
    ),
)

KNOWLEDGE = (
    _relation(
        "capital",
        """What is the capital of {}?
        The capital of {} is
        Which city governs {}?
        Capital city of {}?
        {} has which capital?
        Name the capital of {}.
        The government of {} sits in
        On a map, the capital of {} is
        Seat of government in {}:
        Fly to the capital of {}:""",
        """France = Paris; Italy = Rome; Spain = Madrid; Germany = Berlin; Austria = Vienna;
        Greece = Athens; Portugal = Lisbon; Ireland = Dublin; Norway = Oslo; Sweden = Stockholm;
        Finland = Helsinki; Denmark = Copenhagen; Poland = Warsaw; Hungary = Budapest;
        Russia = Moscow; Turkey = Ankara; Egypt = Cairo; Kenya = Nairobi; Ghana = Accra;
        Morocco = Rabat; Japan = Tokyo; China = Beijing; India = New Delhi; Thailand = Bangkok;
        Vietnam = Hanoi; Iran = Tehran; Iraq = Baghdad; Canada = Ottawa; Cuba = Havana; Peru = Lima;
        Chile = Santiago; Brazil = Brasilia; Australia = Canberra; Nepal = Kathmandu""",
    ),
    _relation(
        "language",
        """Which language is spoken in {}?
        People in {} speak
        The main language of {}?
        Language of {}:
        In {} you will mostly hear
        A child in {} first learns
        If you move to {}, learn
        Newspapers in {} are written in
        Which tongue do they use in {}?
        Songs from {} are in""",
        """France = French; Italy = Italian; Spain = Spanish; Germany = German; Austria = German;
        Greece = Greek; Portugal = Portuguese; Brazil = Portuguese; Norway = Norwegian;
        Sweden = Swedish; Finland = Finnish; Denmark = Danish; Poland = Polish; Hungary = Hungarian;
        Russia = Russian; Turkey = Turkish; Egypt = Arabic; Morocco = Arabic; Japan = Japanese;
        Thailand = Thai; Vietnam = Vietnamese; Cuba = Spanish; Peru = Spanish; Chile = Spanish""",
    ),
    _relation(
        "currency",
        """What is the currency of {}?
        In {} you pay with the
        Money used in {}?
        Shops in {} take the
        The currency in {} is called
        Going to {}, bring which money?
        {} prints which money?
        Prices in {} are in
        Which money do you need in {}?
        Banks of {} pay out the""",
        """France = euro; Italy = euro; Spain = euro; Germany = euro; Greece = euro; Norway = krone;
        Denmark = krone; Sweden = krona; Poland = zloty; Hungary = forint; Russia = ruble;
        Turkey = lira; Egypt = pound; Kenya = shilling; Japan = yen; China = yuan; India = rupee;
        Nepal = rupee; Thailand = baht; Vietnam = dong; Canada = dollar; Australia = dollar;
        Cuba = peso; Chile = peso; Peru = sol; Brazil = real""",
    ),
    _relation(
        "opposite",
        """What is the opposite of {}?
        The opposite of {} is
        Antonym of {}:
        Not {} but
        {} is the contrary of
        Which word means the reverse of {}?
        Say the opposite: {}
        The contrary of {}?
        Opposite word to {}:
        If it is not {}, it is""",
        """hot = cold; big = small; fast = slow; up = down; day = night; old = young; rich = poor;
        wet = dry; hard = soft; light = dark; full = empty; open = closed; early = late;
        strong = weak; high = low; left = right; long = short; clean = dirty; happy = sad;
        thick = thin; loud = quiet; sweet = bitter; sharp = blunt; near = far""",
    ),
    _relation(
        "plural",
        """What is the plural of {}?
        One {}, two
        Plural form of {}:
        More than one {} are
        If there are many, {} becomes
        Write {} in the plural.
        The plural of {} is
        I saw one {}, you saw three
        Two or more of {}:
        Not one {}, but many""",
        """man = men; woman = women; child = children; mouse = mice; foot = feet; tooth = teeth;
        goose = geese; ox = oxen; sheep = sheep; deer = deer; fish = fish; person = people;
        leaf = leaves; wolf = wolves; knife = knives; city = cities; baby = babies; box = boxes;
        hero = heroes; bus = buses; lady = ladies""",
    ),
    _relation(
        "calendar",
        """What comes right after {}?
        {} is followed by
        Directly after {} comes
        Next in order after {}:
        {}, and then?
        Once {} is over, it is
        Which one follows {}?
        The successor of {} is
        What do we have after {}?
        First {}, then""",
        """Monday = Tuesday; Tuesday = Wednesday; Wednesday = Thursday; Thursday = Friday;
        Friday = Saturday; Saturday = Sunday; Sunday = Monday; January = February; February = March;
        March = April; April = May; May = June; June = July; July = August; August = September;
        September = October; October = November; November = December; December = January;
        spring = summer; summer = autumn; autumn = winter; winter = spring""",
    ),
)
